"""CSV with token counts and no times: arrivals are drawn."""

from itertools import islice
from random import Random

from vllm_kairos.workload.arrivals import arrival_times_s
from vllm_kairos.workload.formats.trace_format import LoadOptions, TraceFormat, needed_rate_rps, output_tokens, some_rows
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.source import Record, Source

_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def _matches(first: Record) -> bool:
    return set(_COLUMNS) <= set(first.values) and "arrived_at" not in first.values


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    rate_rps = needed_rate_rps(source, options, "requests")
    records = list(islice(source.csv_records(), options.limit))
    some_rows(source, records)
    arrivals_s = arrival_times_s(len(records), rate_rps=rate_rps, scv=options.scv, rng=Random(f"{options.seed}/arrivals"))
    requests = (_request(record, at_s, remarks) for record, at_s in zip(records, arrivals_s, strict=True))
    return Workload(name=source.name, requests=tuple(requests))


def _request(record: Record, arrival_s: float, remarks: Remarks) -> TraceRequest:
    return TraceRequest(
        request_id=f"row-{record.row}",
        arrival_s=arrival_s,
        prompt_tokens=record.integer("num_prefill_tokens", least=1),
        output_tokens=output_tokens(record, "num_decode_tokens", remarks),
    )


FORMAT = TraceFormat(
    name="lengths",
    columns=f"CSV with {', '.join(_COLUMNS)}",
    matches=_matches,
    read=_read,
    draws_arrivals=True,
)
