"""How a report looks: one style sheet for light and dark, on a screen and on paper."""

# ruff: noqa: E501 (a rule of a style sheet is a line)
STYLE = """
:root { color-scheme: light dark;
  --paper: #fcfcfb; --card: #fff; --ink: #1c2430; --quiet: #5f6b7a; --rule: #dfe3e8; --grid: #eceff2;
  --power: #0b66b2; --clock: #a3560b; --good: #0a7d4f; --bad: #b3261e; --base: #8a94a3; --probe: #c77700; --pair: #7a4fc2;
}
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --card: #1b2027; --ink: #e8ecf1; --quiet: #9aa6b5; --rule: #2f3742; --grid: #262d36;
  --power: #5fb0f2; --clock: #f0a45c; --good: #4cc790; --bad: #ff8a80; --base: #7f8b9b; --probe: #f2b64c; --pair: #b79cf0;
} }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 2.2rem 1.2rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .3rem; letter-spacing: -.01em; text-wrap: balance; }
h1::first-letter { text-transform: uppercase; }
h2 { font-size: 1.05rem; margin: 2.4rem 0 .5rem; }
.small, .say { color: var(--quiet); }
.small { font-size: .87rem; }
.command { font: .87rem/1.5 ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .7rem; margin: 1.4rem 0 0; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .65rem .85rem; }
.tile b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--quiet); font-size: .84rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .8rem .6rem .5rem; }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
.key { display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; padding: .3rem .6rem 0; font-size: .84rem; color: var(--quiet); }
.key i { display: inline-block; width: 14px; height: 8px; border-radius: 2px; margin-right: .4rem; }
.wide { overflow-x: auto; }
.wide svg { min-width: 700px; } .wide table { min-width: 640px; } /* narrower is not read, but scrolled */
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: var(--quiet); border-bottom: 1px solid var(--rule); padding: .3rem .6rem .3rem 0; }
td { vertical-align: top; border-bottom: 1px solid var(--grid); padding: .35rem .6rem .35rem 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.held td { font-weight: 600; }
ul { padding-left: 1.15rem; margin: .3rem 0; }
code { font-family: ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; font-size: .9em; overflow-wrap: anywhere; }
svg text { fill: var(--quiet); font-size: 11px; font-family: inherit; }
svg .name { font-size: 11px; } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .note { font-size: 11.5px; fill: var(--ink); paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
svg .note.quiet { fill: var(--quiet); font-size: 10.5px; }
.grid { stroke: var(--grid); } .axis { stroke: var(--rule); }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .band { stroke: none; opacity: .2; }
.line.power { stroke: var(--power); } .band.power { fill: var(--power); }
.line.clock { stroke: var(--clock); } .line.saving { stroke: var(--good); stroke-width: 2; } .band.saving { fill: var(--good); }
.line.frontier { stroke: var(--power); stroke-dasharray: 5 4; }
.level { stroke: var(--base); stroke-dasharray: 5 4; } .level.limit { stroke: var(--bad); }
.mark line { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; } .mark .touch { stroke: transparent; stroke-width: 9; }
.mark.shift line { stroke: var(--pair); } .mark.limit line { stroke: var(--bad); stroke-dasharray: 5 4; } .note.limit { fill: var(--bad) !important; }
.mark .touch { stroke: transparent !important; }
.dot .bar { fill: none; stroke-width: 1.2; opacity: .7; } .dot circle { stroke: var(--card); stroke-width: 1.2; }
.dot.default circle, .key .default { fill: var(--base); background: var(--base); } .dot.default .bar { stroke: var(--base); }
.dot.tried circle, .key .tried { fill: var(--probe); background: var(--probe); } .dot.tried .bar { stroke: var(--probe); }
.dot.held circle, .key .held { fill: var(--good); background: var(--good); } .dot.held .bar { stroke: var(--good); }
.stripe.baseline, .key .baseline { fill: var(--base); background: var(--base); }
.stripe.probe, .key .probe { fill: var(--probe); background: var(--probe); }
.stripe.verify, .key .verify { fill: var(--pair); background: var(--pair); }
.stripe.hold, .key .hold { fill: var(--good); background: var(--good); }
.stripe.proof, .key .proof { fill: var(--ink); background: var(--ink); }
.key .power { background: var(--power); } .key .saving { background: var(--good); }
@media print { body { background: #fff; } figure, .tile { break-inside: avoid; } }
"""
