"""The style of the report and of the dashboard: light and dark by what the browser asks for."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{--ink:#1d2733;--soft:#5b6b7c;--line:#dde3ea;--back:#fff;--card:#f5f7fa;--size:#3569d4;--rate:#1f9d6b;--loss:#c2571a;
--bad:#c62f3b;--mark:#9aa7b5;
--good:#1f9d6b;--link:#2456b8;--edge:#7b8a9a;--n0:#3569d4;--n1:#1f9d6b;--n2:#c2571a;--n3:#8a4fc9;--n4:#b8860b;--n5:#1798a8;--n6:#c2397f;--n7:#6b7280}
@media (prefers-color-scheme:dark){:root{--ink:#e4eaf1;--soft:#9aa9b9;--line:#2e3946;--back:#12181f;--card:#1b242e;
--size:#7aa5ff;--rate:#4fd09c;--loss:#f0995f;--bad:#ff7680;--mark:#5d6c7c;--good:#4fd09c;
--link:#8ab2ff;--edge:#6d7d8e;--n0:#7aa5ff;--n1:#4fd09c;--n2:#f0995f;--n3:#c39bf5;--n4:#e2b93b;--n5:#5fd0dd;--n6:#f58ac0;--n7:#a3acb8}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1000px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .5rem}.soft,.none{color:var(--soft);fill:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:.6rem;margin:1.2rem 0}
.tile{background:var(--card);border-radius:8px;padding:.6rem .8rem}.tile b{display:block;font-size:1.3rem}
.tile span{color:var(--soft);font-size:.85rem}
svg{width:100%;height:auto;display:block;margin:.4rem 0}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg .title{font-size:13px;font-weight:600;fill:var(--ink)}.grid{stroke:var(--line)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.area{opacity:.16}
.line.size{stroke:var(--size)}.area.size{fill:var(--size)}.line.rate{stroke:var(--rate)}circle.rate{fill:var(--rate)}
.line.loss{stroke:var(--loss)}circle.loss{fill:var(--loss)}
.mark line{stroke:var(--mark);stroke-dasharray:3 3}.fault line{stroke:var(--bad);stroke-dasharray:3 3}
g .touch{stroke:transparent!important;stroke-width:9}
svg text.in{fill:var(--ink);pointer-events:none}svg :is(.n0,.n1,.n2,.n3,.n4,.n5,.n6,.n7){fill-opacity:.32}
rect.trained{fill:var(--good)}rect.start{fill:var(--n5)}rect.rescale{fill:var(--size)}rect.restart{fill:var(--bad)}
rect.stall{fill:var(--n3)}rect.checkpoint{fill:var(--n2)}rect.repeated_steps{fill:var(--n1)}
rect.earlier,rect.now{fill:var(--mark)}
.n0{fill:var(--n0)}.n1{fill:var(--n1)}.n2{fill:var(--n2)}.n3{fill:var(--n3)}.n4{fill:var(--n4)}.n5{fill:var(--n5)}
.n6{fill:var(--n6)}.n7{fill:var(--n7)}
table{border-collapse:collapse;width:100%;font-size:.92rem}th{text-align:left;color:var(--soft);font-weight:500}
th,td{padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}.bad{color:var(--bad)}
pre{background:var(--card);padding:.8rem;border-radius:8px;overflow-x:auto;font-size:.85rem}
"""
