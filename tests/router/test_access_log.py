"""The access log: JSON lines, in order, nothing that was not put there."""

import asyncio
import json
from io import BytesIO

from kairos_router.access_log import AccessLog, AccessRecord, open_log

RECORD = AccessRecord(
    time="2030-01-01T00:00:00.000+00:00", request_id="r", endpoint="/v1/completions", status=200, duration_s=0.5
)


def test_a_record_is_one_json_line_without_what_is_unknown():
    stream = BytesIO()
    log = AccessLog(stream)
    log.write(RECORD)
    said = json.loads(stream.getvalue())
    assert said == {
        "time": "2030-01-01T00:00:00.000+00:00",
        "request_id": "r",
        "endpoint": "/v1/completions",
        "status": 200,
        "duration_s": 0.5,
    }


async def test_lines_gather_and_are_written_soon():
    stream = BytesIO()
    log = AccessLog(stream)
    for _ in range(3):
        log.write(RECORD)
    assert not stream.getvalue()
    async with asyncio.timeout(5):
        while not stream.getvalue():  # noqa: ASYNC110 (a stream tells nobody)
            await asyncio.sleep(0.01)
    assert stream.getvalue().count(b"\n") == 3
    log.write(RECORD)
    log.close()
    assert stream.getvalue().count(b"\n") == 4


def test_a_log_without_a_stream_writes_nothing(capfd):
    log = AccessLog(None)
    log.write(RECORD)
    log.close()
    assert capfd.readouterr() == ("", "")


def test_the_file_is_appended_to(tmp_path):
    for _ in range(2):
        with open_log(tmp_path / "logs") as stream:
            log = AccessLog(stream)
            log.write(RECORD)
    assert len((tmp_path / "logs/access.jsonl").read_text().splitlines()) == 2
