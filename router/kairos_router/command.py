"""`kairos router`: the subcommand."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from kairos_router.config import LogSettings, RouterConfig, build_config
from kairos_router.settings import make_parser, resolve
from vllm_kairos.cli.command import Command
from vllm_kairos.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop; raises KairosError with one line that says what is wrong."""
    config = build_config(resolve(arguments, os.environ))
    _serve(config)
    return 0


def _serve(config: RouterConfig) -> None:
    import asyncio

    import prometheus_client
    import uvloop

    from kairos_router import serve
    from kairos_router.access_log import AccessLog

    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        inputs = serve.Inputs(
            config=config,
            profiles=serve.read_profiles(config),
            key=serve.read_key(config.feed.key_file),
            main=stack.enter_context(serve.bind("--port", config.host, config.port)),
            metrics=stack.enter_context(serve.bind("--prometheus-port", config.prometheus_host, config.prometheus_port)),
        )
        stream = stack.enter_context(_logs(config.log))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve.serve(inputs, AccessLog(stream)))


@contextmanager
def _logs(settings: LogSettings) -> Iterator[IO[bytes] | None]:
    """Set up our own log lines and yield where access lines go, None for nowhere."""
    import logging

    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    level = settings.level.upper()
    if settings.directory is None:
        logging.basicConfig(level=level, format=form, stream=sys.stderr)
        yield sys.stdout.buffer if settings.access_log else None
        return
    try:
        settings.directory.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(level=level, format=form, filename=settings.directory / "router.log")
        stream = _open(settings.directory) if settings.access_log else None
    except OSError as error:
        where = str(settings.directory)
        raise ConfigError(f"--log-dir must be a writable directory, got {where!r} ({error.strerror})") from error
    with ExitStack() as stack:
        yield stack.enter_context(stream) if stream else None


def _open(directory: Path) -> IO[bytes]:
    from kairos_router.access_log import open_log

    return open_log(directory)


COMMAND = Command(
    summary="route requests to prefill and decode servers, deflecting prefills where that is sooner",
    make_parser=make_parser,
    run=run,
)
