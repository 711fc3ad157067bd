"""Notes of steps by their outputs, some of which never come."""

from vllm_kairos.engine.steps_in_flight import StepsInFlight


def test_each_output_has_its_note_and_ends_those_before_it() -> None:
    steps: StepsInFlight[int] = StepsInFlight()
    outputs = [object() for _ in range(4)]
    for number, output in enumerate(outputs):
        steps.add(output, number)
    assert steps.take(object()) is None
    assert steps.take(outputs[0]) == 0
    assert steps.take(outputs[2]) == 2
    assert (steps.take(outputs[1]), len(steps)) == (None, 1)


def test_outputs_that_never_come_do_not_pile_up() -> None:
    steps: StepsInFlight[int] = StepsInFlight()
    outputs = [object() for _ in range(100)]
    for number, output in enumerate(outputs):
        steps.add(output, number)
    assert (steps.take(outputs[0]), len(steps), steps.take(outputs[99])) == (None, 64, 99)
