"""Our own format: JSON lines, first a header, then every field of each request; a saved workload loads back equal."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.formats.trace_format import LoadOptions, TraceFormat
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.source import Record, Source

SCHEMA = 1
_HEADER_KEY = "kairos_workload"
_READERS: dict[str, Callable[[Record, str], Any]] = {
    "request_id": Record.text,
    "arrival_s": Record.number,
    "prompt_tokens": lambda record, name: record.integer(name, least=1),
    "output_tokens": lambda record, name: record.integer(name, least=1),
    "block_hashes": Record.integers,
    "block_tokens": lambda record, name: record.integer(name, least=0),
    "ttft_slo_s": Record.number,
    "tbt_slo_s": Record.number,
    "tpot_slo_s": Record.number,
    "session_id": Record.text,
    "after": Record.text,
    "think_s": Record.number,
}


def save_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`, gzipped when it ends in .gz; equal workloads give equal bytes. Raises WorkloadError."""
    text = "".join(f"{line}\n" for line in _lines(workload)).encode()
    target = Path(path)
    try:
        target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    except OSError as error:
        raise WorkloadError(f"{target}: cannot be written: {error}") from error


def load_workload(path: str | Path) -> Workload:
    """The workload that `save_workload` wrote. Raises WorkloadError naming the file, row, field, rule and value."""
    with Source(Path(path)) as source:
        return _load(source)


def _lines(workload: Workload) -> Iterator[str]:
    header = {
        _HEADER_KEY: SCHEMA,
        "name": workload.name,
        "requests": len(workload.requests),
        "warnings": list(workload.warnings),
    }
    yield json.dumps(header)
    for request in workload.requests:
        values = {field.name: getattr(request, field.name) for field in _FIELDS}
        yield json.dumps({name: value for name, value in values.items() if value != _DEFAULTS.get(name, MISSING)})


_FIELDS: tuple[Field[Any], ...] = fields(TraceRequest)
_DEFAULTS = {field.name: field.default for field in _FIELDS if field.default is not MISSING}


def _matches(first: Record) -> bool:
    return _HEADER_KEY in first.values


def _read(source: Source, options: LoadOptions, _remarks: Remarks) -> Workload:
    workload = _load(source)
    return Workload(name=workload.name, requests=workload.requests[: options.limit], warnings=workload.warnings)


def _load(source: Source) -> Workload:
    records = source.json_records()
    header = next(records, None)
    if header is None:
        raise WorkloadError(f"{source.path}: must have at least one row, got an empty file")
    if header.integer(_HEADER_KEY, least=1) != SCHEMA:
        raise header.error(_HEADER_KEY, f"{SCHEMA}, the only schema this release reads")
    requests = tuple(_request(record) for record in records)
    if header.integer("requests", least=1) != len(requests):
        raise header.error("requests", f"the number of rows below, {len(requests)}")
    warnings = tuple(str(warning) for warning in header.items("warnings"))
    return Workload(name=header.text("name"), requests=requests, warnings=warnings)


def _request(record: Record) -> TraceRequest:
    where = f"{record.path}: row {record.row}"
    unknown = sorted(set(record.values) - set(_READERS))
    if unknown:
        raise WorkloadError(f"{where}: fields must be of {', '.join(_READERS)}, got {unknown}")
    given = [name for name in _READERS if name in record.values or name not in _DEFAULTS]
    values = {name: _READERS[name](record, name) for name in given}
    try:
        return TraceRequest(**values)
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from None


FORMAT = TraceFormat(
    name="kairos",
    columns=f"JSON lines: a header with {_HEADER_KEY}, then requests as save_workload writes them",
    matches=_matches,
    read=_read,
)
