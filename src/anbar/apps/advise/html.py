"""A verdict as one page of HTML that needs nothing else: no script, no font, no address."""

from collections.abc import Iterator

from jinja2 import Environment, StrictUndefined

from anbar.plan.answer import in_words
from anbar.plan.verdict import Verdict

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>anbar advise: {{ v.choice }}</title>
<style>
:root{--ink:#1c2024;--soft:#5b6570;--edge:#d8dee4;--page:#fff;--card:#f7f9fb;--line:#3a6ea5;--mark:#d1702a}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa5b1;--edge:#363d45;--page:#15191d;
--card:#1d2328;--line:#74a9df;--mark:#ef9a5b}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px 20px 48px;max-width:980px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{margin:0;font-size:25px}h2{margin:34px 0 10px;font-size:18px}p{margin:6px 0}.soft,small{color:var(--soft)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:4px 14px 4px 0;border-bottom:1px solid var(--edge);text-align:left;vertical-align:top}
td.n{text-align:right;white-space:nowrap}
figure{margin:0;padding:14px;background:var(--card);border:1px solid var(--edge);border-radius:8px}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
.axis{stroke:var(--soft)}.grid{stroke:var(--edge)}
.found{fill:none;stroke:var(--line);stroke-width:2}.mark{stroke:var(--mark);stroke-dasharray:4}
svg text.name{fill:var(--ink)}ul{padding-left:20px}
</style></head><body>
<h1>Verdict: {{ v.choice }}</h1><p class="soft">confidence: {{ v.confidence }}</p>
{% for r in v.reasons %}<p>{{ "Because" if loop.first else "Also" }}: {{ r.text }}.
<small>({{ r.kind }})</small></p>
{% endfor %}
<h2>Figures</h2><div class="scroll">
<table>{% for f in figures %}<tr><td>{{ f.name }}<td class="n">{{ words(f.value, f.unit) }}
<td><small>{{ f.how }}</small>{% endfor %}</table></div>
{% if v.curve %}<h2>Prompt tokens found, by capacity of one cache for all requests</h2>
<figure><svg viewBox="0 0 640 {{ height }}" role="img" aria-label="hit rate by capacity">
{% for y, text in rows %}<line class="grid" x1="50" y1="{{ y }}" x2="620" y2="{{ y }}"/>
<text x="45" y="{{ y + 4 }}" text-anchor="end">{{ text }}</text>{% endfor %}
<line class="axis" x1="50" y1="{{ bottom }}" x2="620" y2="{{ bottom }}"/>
{% for x, y, anchor, name in marks %}
<line class="mark" x1="{{ x }}" y1="{{ y - 10 }}" x2="{{ x }}" y2="{{ bottom }}"/>
<text class="name" x="{{ x + (-4 if anchor == "end" else 4) }}" y="{{ y }}"
 text-anchor="{{ anchor }}">{{ name }}</text>
{% endfor %}
<polyline class="found" points="{{ points }}"/>
<text x="50" y="{{ bottom + 20 }}">0</text>
<text x="620" y="{{ bottom + 20 }}" text-anchor="end">{{ most }}</text></svg></figure>{% endif %}
{% if v.tenants %}<h2>Saved by tenant</h2><div class="scroll">
<table><tr><th>scope<th>requests<th>tokens<th>GPU time
{% for t in v.tenants %}<tr><td>{{ t.scope or "(none)" }}
<td class="n">{{ "{:,}".format(t.num_requests) }}<td class="n">{{ "{:,}".format(t.saved_tokens) }}
<td class="n">{{ words(t.saved_s, "s") }}{% endfor %}</table></div>{% endif %}
{% for title, texts in notes %}{% if texts %}<h2>{{ title }}</h2><ul>{% for text in texts %}<li>{{ text }}
{% endfor %}</ul>{% endif %}{% endfor %}
</body></html>
"""
_LEFT, _RIGHT, _HEIGHT = 50.0, 620.0, 240.0
_LABEL = 16.0
"""Height of the line in which a mark has its name: each has one of its own."""
_MIDDLE = 335.0
"""Right of it a name stands left of its mark, so that it is within the picture."""


def verdict_as_html(verdict: Verdict) -> str:
    """The page. Capacities that have a name are marked in the curve."""
    curve = verdict.curve
    held = [(row.num_bytes, row.name) for row in verdict.capacities if row.name]
    most = max([point.num_bytes for point in curve] + [size for size, _ in held], default=1.0) or 1.0
    top = max((point.found for point in curve), default=0.0) or 1.0
    start = 10.0 + _LABEL * len(held)
    bottom = start + _HEIGHT

    def place(num_bytes: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * num_bytes / most, 1)

    def height(found: float) -> float:
        return round(bottom - _HEIGHT * found / top, 1)

    points, before = [f"{_LEFT},{bottom}"], bottom
    for point in curve:
        y = height(point.found)
        points += [f"{place(point.num_bytes)},{before}", f"{place(point.num_bytes)},{y}"]
        before = y
    points.append(f"{_RIGHT},{before}")
    marks = [
        (place(size), 14.0 + _LABEL * row, "end" if place(size) > _MIDDLE else "start", name)
        for row, (size, name) in enumerate(held)
    ]
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE)
    return page.render(
        v=verdict,
        figures=verdict.figures,
        words=in_words,
        points=" ".join(points),
        marks=marks,
        rows=[(height(share * top), in_words(share * top, "share")) for share in (0.0, 0.5, 1.0)],
        height=bottom + 30,
        bottom=bottom,
        most=in_words(most, "bytes"),
        notes=list(_notes(verdict)),
    )


def _notes(verdict: Verdict) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "Doubts", verdict.doubts
    changes = (f"{change.what}: {change.choice} ({change.kind})" for change in verdict.changes)
    yield "What would change it", tuple(changes)
    yield "LMCache rather than Anbar's store", (verdict.lmcache,) if verdict.lmcache else ()
    yield "Warnings", verdict.warnings
    yield "Not said", verdict.missing
    yield "Assumed", verdict.assumptions
