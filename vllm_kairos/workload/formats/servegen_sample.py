"""CSV with arrivals in seconds and token counts, as our ServeGen samples and vidur's processed traces have them."""

from itertools import islice

from vllm_kairos.workload.formats.trace_format import LoadOptions, Timed, TraceFormat, on_one_clock, output_tokens
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.source import Record, Source

_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def _matches(first: Record) -> bool:
    return set(_COLUMNS) <= set(first.values)


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    timed = [_timed(record, remarks) for record in islice(source.csv_records(), options.limit)]
    return on_one_clock(source, timed, options.units_per_s("s"), remarks)


def _timed(record: Record, remarks: Remarks) -> Timed:
    request = TraceRequest(
        request_id=f"row-{record.row}",
        arrival_s=0.0,
        prompt_tokens=record.integer("num_prefill_tokens", least=1),
        output_tokens=output_tokens(record, "num_decode_tokens", remarks),
    )
    return record.number("arrived_at"), request


FORMAT = TraceFormat(name="servegen-sample", columns=f"CSV with {', '.join(_COLUMNS)}", matches=_matches, read=_read)
