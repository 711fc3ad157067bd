"""Mooncake's traces: JSON lines with milliseconds from the start and one id per 512-token prefix block."""

from itertools import islice

from vllm_kairos.workload.formats.trace_format import (
    LoadOptions,
    Timed,
    TraceFormat,
    fitting_hashes,
    on_one_clock,
    output_tokens,
)
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload, blocks_of
from vllm_kairos.workload.source import Record, Source

BLOCK_TOKENS = 512
_FIELDS = ("timestamp", "input_length", "output_length")


def _matches(first: Record) -> bool:
    return set(_FIELDS) <= set(first.values)


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    timed = [_timed(record, remarks) for record in islice(source.json_records(), options.limit)]
    return on_one_clock(source, timed, options.units_per_s("ms"), remarks)


def _timed(record: Record, remarks: Remarks) -> Timed:
    prompt_tokens = record.integer("input_length", least=1)
    hashes = fitting_hashes(record, "hash_ids", prompt_tokens, blocks_of(prompt_tokens, BLOCK_TOKENS), remarks)
    request = TraceRequest(
        request_id=f"row-{record.row}",
        arrival_s=0.0,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens(record, "output_length", remarks),
        block_hashes=hashes,
        block_tokens=BLOCK_TOKENS if hashes else 0,
    )
    return record.number("timestamp"), request


FORMAT = TraceFormat(
    name="mooncake",
    columns=f"JSON lines with {', '.join(_FIELDS)}, hash_ids",
    matches=_matches,
    read=_read,
)
