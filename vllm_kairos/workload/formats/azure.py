"""Azure's public LLM inference traces: CSV with wall-clock times of up to 100 ns, no prefix information."""

from datetime import datetime, timedelta
from itertools import islice

from vllm_kairos.workload.formats.trace_format import LoadOptions, Timed, TraceFormat, on_one_clock, output_tokens
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.source import Record, Source

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TICKS_PER_S = 10_000_000
_TICKS_PER_MICROSECOND = 10
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)


def _matches(first: Record) -> bool:
    return set(_COLUMNS) <= set(first.values)


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    timed = [_timed(record, remarks) for record in islice(source.csv_records(), options.limit)]
    return on_one_clock(source, timed, _TICKS_PER_S, remarks)


def _timed(record: Record, remarks: Remarks) -> Timed:
    request = TraceRequest(
        request_id=f"row-{record.row}",
        arrival_s=0.0,
        prompt_tokens=record.integer("ContextTokens", least=1),
        output_tokens=output_tokens(record, "GeneratedTokens", remarks),
    )
    return _ticks(record), request


def _ticks(record: Record) -> int:
    """The row's time in units of 100 ns: `datetime` alone would drop the seventh digit."""
    text = record.text("TIMESTAMP")
    whole, _, fraction = text.strip().partition(".")
    zone_start = next((at for at, sign in enumerate(fraction) if not sign.isdigit()), len(fraction))
    digits, zone = fraction[:zone_start], fraction[zone_start:]
    try:
        moment = datetime.fromisoformat(whole + zone)
    except ValueError:
        raise record.error("TIMESTAMP", "a date and time such as 2023-11-16 18:15:46.6805900") from None
    offset = moment.utcoffset() or timedelta()
    since_epoch = moment.replace(tzinfo=None) - offset - _EPOCH
    return since_epoch // _MICROSECOND * _TICKS_PER_MICROSECOND + int(digits[:7].ljust(7, "0") or 0)


FORMAT = TraceFormat(name="azure", columns=f"CSV with {', '.join(_COLUMNS)}", matches=_matches, read=_read)
