"""Sweep a real engine on a model folder and print what it ran; run as a process of its own."""

import json
import os
import sys

from vllm_kairos.engine.compat_inprocess import InprocessEngine
from vllm_kairos.profiler.options import ProfileOptions, engine_environment
from vllm_kairos.profiler.runner import run_sweep
from vllm_kairos.profiler.sweep import Probe, Scene, SweepPlan, limits_of

SCENES = (
    Scene(0, 0, (Probe(64, 0), Probe(64, 100), Probe(200, 300))),
    Scene(3, 65, (Probe(), Probe(), Probe(61, 0), Probe(29, 250), Probe())),
    Scene(4, 33, (Probe(),)),
)


def main(model: str) -> None:
    options = ProfileOptions(
        model=model,
        dtype="bfloat16",
        max_model_len=512,
        block_size=32,
        max_num_seqs=4,
        engine_args=("--enforce-eager", "--load-format", "dummy", "--skip-tokenizer-init", "--enable-prefix-caching"),
    )
    os.environ.update(engine_environment(options, os.environ))
    engine = InprocessEngine.build(options.engine_argv())
    try:
        limits = limits_of(engine.facts)
        outcome = run_sweep(
            engine, SweepPlan(SCENES, ()), passes=0, time_is_up=lambda: False, on_progress=lambda progress: None
        )
        engine.add("after", [5, 6, 7], held_tokens=0)  # the sweep must have left nothing behind
        parts = [engine.step().parts, engine.step().parts]
    finally:
        engine.close()
    batches = [
        [item.batch.running_decodes, item.batch.kv_tokens, item.batch.prefill_tokens, item.batch.done_tokens]
        for item in outcome.recorder.samples
    ]
    left = [[[part.scheduled_tokens, part.held_tokens, part.is_decode] for part in step] for step in parts]
    ordered = all(0 < item.step_s <= (item.period_s or 0) for item in outcome.recorder.samples)
    result = {"batches": batches, "unplanned": outcome.recorder.unplanned_steps, "after": left, "ordered": ordered}
    result |= {"kv_bytes_per_token": engine.facts.kv_bytes_per_token, "capacity_blocks": limits.kv_blocks}
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
