"""The page in a browser: a prompt is typed, an answer comes tinted, numbers move, and nothing is fetched abroad."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import CHROMIUM, DRIVER, ENTER, MISSING, Browser, chromium
from tests.served import Server, chunks_of, model_arguments, serving
from tests.unit.cli.world import World

pytestmark = pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason=MISSING)

QUESTION = "good day"  # of its answer the tiny draft guesses some
ANSWER = "#turns article.assistant"
FAKE = """
const parts = [
  {text: '<b onclick="x()">bold</b> ', drafted: true}, {text: '<img src=x onerror=alert(1)>\\u4f60', drafted: false}];
const chunk = {choices: [{delta: {content: 'x'}, finish_reason: 'stop', speculation: {tokens: 2, accepted: 1, parts}}]};
const bytes = new TextEncoder().encode('data: ' + JSON.stringify(chunk) + '\\n\\ndata: [DONE]\\n\\n');
const real = window.fetch;
window.fetch = (path, options) => String(path).includes('/chat/') ? Promise.resolve(new Response(new ReadableStream({
  async start(stream) {
    for (const each of bytes) stream.enqueue(Uint8Array.of(each));
    stream.close();
  }}))) : real(path, options);
"""
STOP_AT_ONCE = """
const observer = new MutationObserver(() => {
  if (!document.querySelector('#turns article.assistant span')) return;
  observer.disconnect();
  document.querySelector('#stop').click();
});
observer.observe(document.querySelector('#turns'), {childList: true, subtree: true});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--window-size=1280,860") as found:
        yield found


@pytest.fixture
def page(browser: Browser, server: Server) -> Browser:
    """The page, ready to be asked."""
    browser.open(f"{server.url}/")
    browser.wait_until(lambda: browser.text("#state") == "ready")
    browser.complaints()
    return browser


def ask(page: Browser, question: str = QUESTION, *, tokens: int = 24) -> None:
    page.set("#max-tokens", str(tokens))
    page.type("#prompt", question + ENTER)


def answered(page: Browser, count: int = 1) -> None:
    page.wait_until(lambda: len(page.texts(f"{ANSWER} footer")) == count)


def streamed(server: Server, **more: Any) -> list[dict[str, Any]]:
    """What the wire says of the same request, chunk by chunk."""
    said = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24, "temperature": 0}
    body = {**said, "stream": True, "speculation": {"parts": True, "metrics": True}, **more}
    return chunks_of(server.post("/v1/chat/completions", body))


def test_accepted_draft_tokens_are_tinted_and_the_targets_own_are_plain(page: Browser, server: Server) -> None:
    ask(page)
    answered(page)
    chunks = streamed(server)
    parts = [part for chunk in chunks for part in chunk["choices"][0].get("speculation", {}).get("parts", [])]
    assert page.texts(f"{ANSWER} mark") == [part["text"] for part in parts if part["drafted"]] != []
    assert page.texts(f"{ANSWER} span") == [part["text"] for part in parts if not part["drafted"]] != []
    assert page.text(f"{ANSWER} p") == "".join(part["text"] for part in parts)
    tint, plain = (
        page.run("return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", f"{ANSWER} {kind}")
        for kind in ("mark", "span")
    )
    assert tint != plain == "rgba(0, 0, 0, 0)"


def test_the_numbers_are_those_of_the_server(page: Browser, server: Server) -> None:
    ask(page)
    answered(page)
    counts = streamed(server)[-1]["metrics"]["speculative_decoding"]
    assert page.text("#accept-length") == f"{counts['mean_acceptance_length']:.2f}"
    assert page.text("#num-cycles") == str(counts["num_spec_steps"])
    assert page.text("#tokens").startswith("24, ")
    assert float(page.text("#tokens-per-second")) > 0
    assert page.text("#first-token").endswith(" ms")
    page.wait_until(lambda: page.text("#break-even") != "-")
    speed_up = counts["mean_acceptance_length"] / float(page.text("#break-even"))
    assert float(page.text("#speed-up").rstrip("\u00d7")) == pytest.approx(speed_up, rel=0.02)
    assert f"accept length {page.text('#accept-length')}" in page.text(f"{ANSWER} footer")


def test_the_strip_shows_the_last_cycles_by_stage(page: Browser, server: Server) -> None:
    ask(page)
    answered(page)
    last = server.get("/cycles").json()["cycles"][-1]["cycle"]
    page.wait_until(lambda: any(f"cycle {last}:" in each for each in page.texts("#strip title")))
    for kind in ("propose", "verify", "drafted", "own"):
        assert page.run("return document.querySelectorAll(arguments[0]).length", f"#strip rect.{kind}") > 0
    stages = page.texts("#legend td:first-child")
    assert [each for each in stages if each in ("extend", "propose", "verify")] == ["extend", "propose", "verify"]
    assert all(text.endswith(" ms") for text in page.texts("#legend td:nth-child(2)"))


def test_zero_steps_decode_plainly(page: Browser) -> None:
    page.set("#steps", "0")
    ask(page)
    answered(page)
    assert page.text("#accept-length") == "1.00"
    assert page.texts(f"{ANSWER} mark") == []
    assert page.text("#speed-up") == "-"


def test_a_stopped_answer_is_no_longer_computed(page: Browser, server: Server) -> None:
    gone = 'slipstream_http_responses_total{path="/v1/chat/completions",status="499"}'
    server.wait_until(server.idle)
    before = server.number(gone) if gone in server.get("/metrics").text else 0.0
    page.run(STOP_AT_ONCE)
    ask(page, tokens=220)
    answered(page)
    server.wait_until(server.idle)
    assert page.text(f"{ANSWER} footer").endswith("stopped")
    assert server.number(gone) == before + 1
    ask(page)  # and the next one is answered, with what was said before it
    answered(page, 2)
    assert page.texts(f"{ANSWER} footer")[1].endswith(("length", "stop"))


def test_a_conversation_goes_on_until_it_is_cleared(page: Browser, server: Server) -> None:
    page.run("document.querySelector('details').open = true")
    page.type("#system", "be brief")
    ask(page)
    answered(page)
    first = page.text(f"{ANSWER} p")
    ask(page, "again")
    answered(page, 2)
    said = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "again"},
    ]
    body = {"messages": said, "max_tokens": 24, "temperature": 0}
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert page.texts(f"{ANSWER} p")[1] == whole
    page.click("#clear")
    assert page.texts("#turns article") == []


def test_what_a_model_says_is_text_and_never_markup(page: Browser) -> None:
    page.run(FAKE)
    ask(page, "<script>alert(2)</script>")
    answered(page)
    assert page.text(f"{ANSWER} p") == '<b onclick="x()">bold</b> <img src=x onerror=alert(1)>\u4f60'
    assert page.text("#turns article.user p") == "<script>alert(2)</script>"
    assert page.run("return document.querySelectorAll('#turns :is(b, img, script)').length") == 0


def test_a_refusal_is_shown_as_the_server_says_it(page: Browser) -> None:
    ask(page, "word " * 400)
    answered(page)
    assert "256" in page.text(f"{ANSWER} footer")


def test_nothing_comes_from_elsewhere_and_nothing_complains(page: Browser, server: Server) -> None:
    ask(page)
    answered(page)
    names = page.run("return performance.getEntriesByType('resource').map(each => each.name)")
    assert len(names) > 6
    assert [name for name in names if not name.startswith(f"{server.url}/")] == []
    assert page.complaints() == []


def test_it_is_dark_where_dark_is_preferred(page: Browser) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        grounds.append(page.run("return getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(247, 247, 245)", "rgb(18, 20, 22)"]


def test_a_key_is_asked_for_once(http_world: World) -> None:
    arguments = model_arguments(http_world.model, http_world.draft, "--api-key", "open sesame")
    with serving(*arguments, key="open sesame") as server, chromium() as browser:
        browser.open(f"{server.url}/")
        assert browser.run("return document.querySelector('#prompt')") is None
        browser.open(server.url.replace("://", "://anyone:open%20sesame@"))
        browser.wait_until(lambda: browser.text("#state") == "ready")
        ask(browser)
        answered(browser)
        assert browser.text(f"{ANSWER} footer").startswith("24 tokens")
        browser.wait_until(lambda: browser.texts("#strip title") != [])
