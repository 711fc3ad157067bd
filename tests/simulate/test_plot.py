"""What a person reads off the pictures."""

from matplotlib import pyplot

from tests.simulate.runs import cell, result_of
from vllm_kairos.simulate.load_lines import load_lines
from vllm_kairos.simulate.plot import _plain_ticks, draw_all
from vllm_kairos.simulate.sections import ObjectivesConfig
from vllm_kairos.simulate.table import groups_of
from vllm_kairos.workload import describe, generate


def test_logarithmic_axes_have_plain_numbers():
    figure, panel = pyplot.subplots()
    panel.plot([1, 2], [350, 4200])
    panel.set_yscale("log")
    _plain_ticks(panel.yaxis)
    figure.canvas.draw()
    labels = {label.get_text() for label in panel.get_yticklabels(which="both")} - {""}
    pyplot.close(figure)
    assert "1,000" in labels
    assert not any("10^" in label or "times" in label for label in labels)


def test_every_picture_is_drawn_for_one_policy_at_its_own_rate():
    pictures = draw_all(groups_of([result_of(cell(rate_rps=None))]), ObjectivesConfig())
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())


def test_a_rate_that_was_asked_for_is_not_set_beside_the_papers():
    lines = list(load_lines(describe(generate("HPLD", requests=200, seed=0, rate_rps=0.5))))
    assert any(line.startswith("prompt_tokens p50: 1") and "e+" not in line for line in lines)
    assert not any("rate_rps" in line for line in lines)
