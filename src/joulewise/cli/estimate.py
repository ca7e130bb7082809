"""``joulewise estimate``: what tuning would save in a fleet, from what its monitoring kept. Nothing is installed."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import outputs, say
from joulewise.core.errors import BadSpec

_DAY_S = 86_400.0
_WINDOWS = 2016  # a week in windows of five minutes
_SHORTEST_S, _LONGEST_S = 15.0, 3600.0
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": _DAY_S, "": 1.0}


def estimate(
    ctx: typer.Context,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="The server that has DCGM's series: http://HOST:9090.")
    ],
    days: Annotated[float, typer.Option(metavar="DAYS", help="How far back to look.")] = 7.0,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Where it ends, UTC: 2026-03-14T10:00. Default: now.")
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="5m", help="Length of a window. Default: by --days; two scrapes at least.")
    ] = None,
    match: Annotated[
        str, typer.Option(metavar="LABELS", help="Only series with these labels: '{cluster=\"a\"}'.")
    ] = "",
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="A label that tells jobs apart; repeatable. Default: job and pod labels."),
    ] = None,
    max_slowdown: Annotated[str, typer.Option(metavar="2%", help="Slower by so much at most.")] = "2%",
    kwh_price: Annotated[float | None, typer.Option(metavar="PRICE", help="Of a kWh, in any currency.")] = None,
    carbon_g_per_kwh: Annotated[float | None, typer.Option(metavar="G", help="Grams of CO2e a kWh.")] = None,
    carbon_source: Annotated[str | None, typer.Option(metavar="WORDS", help="Where that figure is from.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds a bearer token for the server.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="For basic authentication, with --password-file.")
    ] = None,
    password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Holds that user's password.")] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates to trust, in PEM. Default: the system's.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Sent with every question; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draws.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="Write it as a page.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, every number in full.")] = False,
) -> None:
    """What tuning would save in a fleet, from its DCGM history.

    Reads power, clocks and activity that dcgm-exporter has left in a
    Prometheus, and says what clocks within --max-slowdown would save, with a
    95 % interval, by GPU model and by job. Nothing is installed on a node,
    nothing is set. Idle GPUs are told apart.

      joulewise estimate --prometheus http://prometheus:9090
      joulewise estimate --prometheus https://thanos --match '{cluster="a"}' \\
          --token-file token --kwh-price 0.25 --out estimate.html
    """
    from joulewise.cli.one_thread import load_numpy

    load_numpy()
    from joulewise.cli import estimate_views
    from joulewise.cli.estimate_access import headers, in_the_clear
    from joulewise.cli.objectives import slowdown
    from joulewise.monitor import fleet
    from joulewise.monitor.prometheus import Prometheus, Span
    from joulewise.report import fleet_page, fleet_plot
    from joulewise.report.fleet import estimate as estimated
    from joulewise.report.plot import check
    from joulewise.report.worth import Carbon

    bound = slowdown(max_slowdown)
    _refuse_unfit(days, kwh_price)
    carbon = Carbon.given(carbon_g_per_kwh, carbon_source)
    if out is not None:
        outputs.refuse_no_html("--out", out)
        outputs.refuse_unwritable("--out", out)
    if plot is not None:
        check(plot)
        outputs.refuse_unwritable("--plot", plot)
    read = {"--token-file": token_file, "--password-file": password_file, "--ca-file": ca_file}
    outputs.refuse_one_for_two({"--out": out, "--plot": plot, **read})
    step_s = window_s(step, days)
    end_s = math.floor(ends_s(until, time.time()) / step_s) * step_s
    count = max(1, round(days * _DAY_S / step_s))
    sent = headers(header or [], token_file=token_file, user=user, password_file=password_file)
    server = Prometheus(prometheus, headers=sent, ca_file=ca_file)
    if (warning := in_the_clear(prometheus, sent)) is not None:
        say(ctx, warning)
    span = Span(end_s - (count - 1) * step_s, step_s, count)
    seen = fleet.read(server, span, match=matchers(match), by=by or (), progress=lambda words: say(ctx, words))
    for warning in fleet.warned(server):
        say(ctx, warning)
    found = estimated(seen, bound, seed=seed, progress=lambda words: say(ctx, words))
    if out is not None:
        out.write_text(fleet_page.page(found, kwh_price, carbon), encoding="utf-8", errors="replace")
        say(ctx, f"the page is {out}")
    if plot is not None:
        fleet_plot.draw(plot, found)
        say(ctx, f"the picture is {plot}")
    if as_json:
        print(estimate_views.dumped(found, kwh_price, carbon))
        return
    estimate_views.print_page(found, kwh_price, carbon)


def _refuse_unfit(days: float, kwh_price: float | None) -> None:
    if not 0.0 < days <= 3660.0:
        raise BadSpec(f"--days {days:g} is no length of a history; give a number above 0, such as 7")
    if kwh_price is not None and not 0.0 <= kwh_price < math.inf:
        raise BadSpec(f"--kwh-price {kwh_price:g} is no such figure; give a number of 0 or more")


def window_s(text: str | None, days: float) -> float:
    """Seconds of a window: as written ("5m", "90s"), else about a two-thousandth of the history, in whole minutes."""
    if text is None:
        return min(_LONGEST_S, 60.0 * max(1, math.ceil(days * _DAY_S / _WINDOWS / 60.0 - 1e-9)))
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if found is None or found[2] not in _UNITS:
        raise BadSpec(f"--step {text!r} is no length of time; write 90s, 5m or 1h")
    seconds = round(float(found[1]) * _UNITS[found[2]])
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise BadSpec(f"--step {text} is outside 15 s to 1 h; scrapes come every few seconds, phases last minutes")
    return float(seconds)


def ends_s(text: str | None, now_s: float) -> float:
    """Unix seconds of ``--until``; now where it is not said. BadSpec for what is no time, or in the future."""
    if text is None:
        return now_s
    try:
        written = datetime.fromisoformat(text.strip())
        found_s = (written if written.tzinfo is not None else written.replace(tzinfo=UTC)).timestamp()
        if found_s < 0.0:
            raise ValueError(found_s)
    except (ValueError, OverflowError):
        raise BadSpec(f"--until {text!r} is no time; write 2026-03-14T10:00 (UTC)") from None
    if found_s > now_s:
        now = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M")
        raise BadSpec(f"--until {text} is in the future, of which nothing is kept: it is {now} (UTC) now")
    return found_s


def matchers(text: str) -> str:
    """``'{cluster="a"}'`` without its braces. BadSpec for what cannot be a list of label matchers."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1].strip()
    one = r'[A-Za-z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"'
    if inner and not re.fullmatch(rf"{one}(?:\s*,\s*{one})*\s*,?", inner):
        raise BadSpec(f'--match {text!r} is no list of labels; write it as \'{{cluster="a",namespace=~"team-.*"}}\'')
    return inner
