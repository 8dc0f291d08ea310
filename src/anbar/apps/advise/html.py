"""A verdict as one page of HTML that needs nothing else: no script, no font, no address."""

from jinja2 import Environment, StrictUndefined

from anbar.plan.answer import in_words
from anbar.plan.verdict import Verdict

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>anbar advise: {{ v.choice }}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1c2430}
h1{margin-bottom:0}
table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .8em;border-bottom:1px solid #dde;text-align:left;vertical-align:top}
td.n{text-align:right;white-space:nowrap}
small,td small{color:#667}
svg{max-width:100%}
</style>
<h1>{{ v.choice }}</h1><p>confidence: {{ v.confidence }}</p>
{% for r in v.reasons %}<p>{{ "Because" if loop.first else "Also" }}: {{ r.text }}.
<small>{{ r.kind }}</small></p>
{% endfor %}
<table>{% for f in v.figures %}<tr><td>{{ f.name }}<td class="n">{{ words(f.value, f.unit) }}
<td><small>{{ f.how }}</small>{% endfor %}</table>
{% if v.curve %}<h2>Prompt tokens found, by capacity</h2>
<svg viewBox="0 0 640 300" role="img" aria-label="hit rate by capacity">
<line x1="50" y1="260" x2="620" y2="260" stroke="#889"/><line x1="50" y1="20" x2="50" y2="260" stroke="#889"/>
<polyline fill="none" stroke="#2a62c9" stroke-width="2" points="{{ points }}"/>
{% for x, name in marks %}
<line x1="{{ x }}" y1="20" x2="{{ x }}" y2="260" stroke="#c55" stroke-dasharray="4"/>
<text x="{{ x + 3 }}" y="{{ 32 + 14 * loop.index0 }}" font-size="11">{{ name }}</text>{% endfor %}
<text x="50" y="280" font-size="11">0</text>
<text x="620" y="280" font-size="11" text-anchor="end">{{ most }}</text>
<text x="45" y="25" font-size="11" text-anchor="end">{{ top }}</text></svg>{% endif %}
{% if v.tenants %}<h2>Saved by tenant</h2><table><tr><th>scope<th>requests<th>tokens<th>GPU time
{% for t in v.tenants %}<tr><td>{{ t.scope }}
<td class="n">{{ t.num_requests }}<td class="n">{{ t.saved_tokens }}
<td class="n">{{ words(t.saved_s, "s") }}{% endfor %}</table>{% endif %}
{% for title, texts in notes %}{% if texts %}<h2>{{ title }}</h2><ul>{% for text in texts %}<li>{{ text }}
{% endfor %}</ul>{% endif %}{% endfor %}
</html>
"""
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 620.0, 20.0, 260.0


def verdict_as_html(verdict: Verdict, held_bytes: dict[str, float]) -> str:
    """The page; `held_bytes` are capacities to mark in the curve, by name."""
    curve = verdict.curve
    most = max([point.num_bytes for point in curve] + list(held_bytes.values()), default=1.0) or 1.0
    top = max((point.found for point in curve), default=0.0) or 1.0

    def place(num_bytes: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * num_bytes / most, 1)

    points, before = [f"{_LEFT},{_BOTTOM}"], _BOTTOM
    for point in curve:
        y = round(_BOTTOM - (_BOTTOM - _TOP) * point.found / top, 1)
        points += [f"{place(point.num_bytes)},{before}", f"{place(point.num_bytes)},{y}"]
        before = y
    notes = [
        ("Doubts", verdict.doubts),
        ("What would change it", [f"{c.what}: {c.choice} ({c.kind})" for c in verdict.changes]),
        ("LMCache rather than Anbar's store", [verdict.lmcache] if verdict.lmcache else []),
        ("Warnings", verdict.warnings),
        ("Not said", verdict.missing),
        ("Assumed", verdict.assumptions),
    ]
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE)
    return page.render(
        v=verdict,
        words=in_words,
        points=" ".join(points),
        marks=[(place(num_bytes), name) for name, num_bytes in held_bytes.items()],
        most=in_words(most, "bytes"),
        top=in_words(top, "share"),
        notes=notes,
    )
