"""The tables of docs/scale.md from the values of `report`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.simulation.report import EXCEPTIONS, SHARDS, TOLERANCE


def show_seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"


def show(value: float, unit: str) -> str:
    match unit:
        case "s":
            return show_seconds(value)
        case "bytes":
            return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
        case "agents":
            return f"{value:,.0f} agents"
        case _:
            return f"{value:.0%}"


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---").replace("---| ", "---|") for line in lines)


def render_checks(checks: Sequence[Mapping[str, Any]]) -> str:
    rows, notes = [], []
    for one in checks:
        is_memory = "memory" in one["name"]
        values = [
            f"{one[side] / 1024:.0f} KiB" if is_memory else f"{one[side]:.3g} s" for side in ("measured", "model")
        ]
        error = one["model"] / one["measured"] - 1
        mark = " \\*" if abs(error) > TOLERANCE else ""
        rows.append([one["name"], *values, f"{error:+.0%}{mark}", one["use"]])
        if mark:
            notes.append(f"\\* {one['name']}: {EXCEPTIONS.get(one['name'], 'no reason is known')}.")
    table = render_table(["", "measured", "model", "error", "use"], rows)
    return "\n\n".join([table, *notes])


def render_breaks(breaks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            one["limit"],
            show(one["bound"], one["unit"]),
            f"{one['agents']:,}" if one["agents"] else "above 10,000,000",
            one["build"],
        ]
        for one in breaks
    ]
    return render_table(["limit", "bound", "exceeded by agents", "what to build then"], rows)


def render_sizes(sizes: Sequence[Mapping[str, float]]) -> str:
    rows = [
        [
            f"{one['shards']:.0f}",
            show_seconds(one["connect"]),
            f"{one['heartbeats']:.0%}",
            show(one["memory"], "bytes"),
            show_seconds(one["start"]),
        ]
        for one in sizes
    ]
    head = [
        "hubs",
        "all agents back after new leaders",
        "heartbeats, share of a core each",
        "memory each",
        "first pass",
    ]
    return render_table(head, rows)


def render_churn(churn: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{one['losses']:.0f}",
            show_seconds(one["median"]),
            show_seconds(one["p99"]),
            f"{one['api']:.0%}",
            f"{one['hub']:.0%}",
            "yes" if one["keptUp"] else "**no**",
        ]
        for one in churn
    ]
    head = ["losses a second", "regroup, median", "99 %", "API server busy", "busiest hub", "keeps up"]
    return render_table(head, rows)


def render(values: Mapping[str, Any]) -> dict[str, str]:
    """Every generated block of the page, by its name."""
    return {
        "checks": render_checks(values["checks"]),
        "breaks": render_breaks(values["breaks"]),
        "sizes": render_sizes(values["sizes"]),
        "churn": f"{render_churn(values['churn'])}\n\nCreating the 10,000 jobs takes "
        f"{show_seconds(values['creation'])}, with {SHARDS[-1]} hubs: the API server is busy all the time.",
    }
