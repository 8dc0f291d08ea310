"""Scenarios run to their end: text, JSON, CSV and a page, the same every time."""

import csv
import html.parser
import io
import json
import re
from pathlib import Path

import msgspec
import pytest

from anbar.apps.simulate.html import as_html
from anbar.apps.simulate.report import Gain, Report, Run, break_even, happened, run_scenario
from anbar.apps.simulate.result import Samples
from anbar.apps.simulate.scenario_file import Found, parse_scenario
from anbar.apps.simulate.setup import Incident, Mode
from anbar.apps.simulate.svg import Axes, Line, plot
from anbar.apps.simulate.text import as_csv, as_text

SMALL = """
about: four clients <here> with long answers
workload:
  duration_s: 3
  streams:
    - {name: long, clients: 4, question_tokens: [500, 900], answer_tokens: [100, 300]}
    - {name: twice, rate: 1, turns: 2, shared_tokens: 300, answer_tokens: 20, think_s: 1}
fleet: {kv_tokens: 3000, block_size: 48}
cache: {host_bytes: 8GiB, chunk_tokens: 48}
sweep: {kv_tokens: [9000, 2500]}
"""


@pytest.fixture(scope="module")
def report() -> Report:
    """Of a scenario that takes a moment."""
    return made()


def made() -> Report:
    return run_scenario(Found("small", parse_scenario(SMALL, "small"), Path()))


def test_the_same_scenario_gives_the_same_bytes(report: Report) -> None:
    """In every form."""
    again = made()
    for form in (msgspec.json.encode, as_html, as_csv, lambda r: as_text(r, 100)):
        assert form(report) == form(again)


def test_json_holds_all_runs_and_what_follows(report: Report) -> None:
    """Both modes at the fleet's size, and both sizes of the sweep."""
    read = json.loads(msgspec.json.encode(report))
    assert [run["mode"] for run in read["runs"]] == ["none", "native"]
    assert [gain["kv_tokens"] for gain in read["sweep"]] == [9000, 2500]
    assert len(read["gains"]) == len(read["break_even"]) == 1
    assert len(read["runs"][0]["result"]["ttft_cdf_s"]) == 101
    assert read["runs"][0]["result"]["num_preemptions"] > 0


def test_less_hbm_is_fuller(report: Report) -> None:
    """The sweep's utilisation without offload grows as HBM shrinks."""
    large, small = report.sweep
    assert large.utilisation < small.utilisation


def test_the_table_tells_all(report: Report) -> None:
    """Figures of both modes, of both streams, gain, sweep and assumptions."""
    text = as_text(report, 100)
    for line in (
        "small: four clients <here>",
        "preemptions",
        "twice: first token p90",
        "native against none",
    ):
        assert line in text
    assert "break-even: native gains" in text
    assert "assumed: hit rates are by tokens" in text
    assert max(map(len, text.splitlines())) <= 100


def test_csv_has_a_row_for_each_run(report: Report) -> None:
    """With names in the first line."""
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert [row["mode"] for row in rows] == ["none", "native"]
    assert int(rows[0]["tokens_prompt"]) == report.runs[0].result.tokens.prompt


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.num_plots = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_plots += tag == "svg"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(report: Report) -> None:
    """Nested as it must be, all plots, nothing loaded, nothing unescaped, no number that is none."""
    page = as_html(report)
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.addresses == []
    assert tags.num_plots == 9
    assert "<here>" not in page
    assert not re.search(r"\bnan\b|\binf\b|http", page)


def test_lines_stay_in_the_plane() -> None:
    """Also one point alone, equal values, and values of zero."""
    for points in ([(5.0, 3.0)], [(0.0, 0.0), (9.0, 0.0)], [(0.1, -2.0), (80.0, 1e7)]):
        for log in (False, True):
            drawn = plot(Axes("x", "y", log=log), [Line("a", points)])
            path = re.search(r'points="([^"]*)"', drawn)
            assert path is not None
            for pair in path[1].split():
                x, y = map(float, pair.split(","))
                assert 62 <= x <= 546
                assert 14 <= y <= 256


def _gain(utilisation: float, throughput: float) -> Gain:
    return Gain(Mode.NATIVE, 1, utilisation, throughput, 0.0, 0)


@pytest.mark.parametrize(
    ("points", "at", "text"),
    [
        ([(0.2, -0.01), (0.6, -0.01), (0.8, 0.03)], 0.65, "from 65% HBM utilisation on"),
        ([(0.8, 0.03), (0.4, 0.01)], None, "at all sizes tried, from 40% HBM utilisation on"),
        ([(0.8, 0.0), (0.4, -0.01)], None, "at no size tried, up to 80% HBM utilisation"),
    ],
)
def test_break_even_is_where_the_gain_crosses_zero(
    points: list[tuple[float, float]], at: float | None, text: str
) -> None:
    """In a straight line between two sizes; or it is not among them, and that is said."""
    found = break_even(Mode.NATIVE, [_gain(*point) for point in points])
    assert found.utilisation == (None if at is None else pytest.approx(at))
    assert found.text.endswith(text)


def test_what_an_incident_did_is_told(report: Report) -> None:
    """What was found in the store in the minute before it, in the one after it, and at the end: neither the
    cold beginning nor what became of it later is in those."""
    samples = Samples(
        30.0,
        [0.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0, 210.0],
        prompt=[0, 100, 200, 300, 400, 500, 600, 700],
        shared=[0, 0, 60, 120, 125, 130, 190, 250],
    )
    result = msgspec.structs.replace(report.runs[0].result, samples=samples)
    (line,) = happened([Incident(90.0, 1)], [Run(Mode.NONE, 1, result), Run(Mode.SHARED, 1, result)])
    found = "60.0% of prompt tokens found in the store in the minute before, 5.0% in the one after"
    assert line == f"node 1 dead at 90 s: {found}, 60.0% in the last one"
