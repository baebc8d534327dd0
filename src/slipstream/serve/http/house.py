"""Put together what all endpoints share, before the engine's process is started."""

from slipstream.serve.http.client import EngineClient
from slipstream.serve.http.limits import Limits
from slipstream.serve.http.log import RequestLog
from slipstream.serve.http.metrics import Metrics
from slipstream.serve.http.reply import House, now
from slipstream.serve.http.settings import EngineSettings, HttpSettings
from slipstream.serve.http.texts import Texts
from slipstream.serve.messages import Load
from slipstream.telemetry.clock import Clock


def make_house(http: HttpSettings, engine: EngineSettings, texts: Texts) -> House:
    """A house whose client has yet to be started."""
    folder = None if engine.profile_dir is None else str(engine.profile_dir.absolute())
    settings = {name: value for name, value in engine.llm.items() if name != "draft_wiring"}
    wiring = engine.llm["draft_wiring"]
    client = EngineClient(Load(settings=settings, draft_wiring=wiring, warm_up=engine.warm_up, profile_dir=folder))
    decode = lambda ids: texts.tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731 - one use
    return House(
        settings=http,
        client=client,
        texts=texts,
        limits=Limits(http.max_requests),
        metrics=Metrics(lambda: client.report, model=http.served_names[0], compat=http.metrics_compat),
        log=RequestLog(prompts=http.log_prompts, decode=decode),
        clock=Clock(),
        started=now(),
    )
