"""/metrics of all replicas as one text; a label says whose a sample is."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "replica"


class Families(Collector):
    """Samples as they were written elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged(texts: Mapping[str, bytes]) -> bytes:
    """One exposition; texts: one by the name of each replica."""
    families: dict[str, Metric] = {}
    for name, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            whole.samples += [each._replace(labels={**each.labels, LABEL: name}) for each in family.samples]
    registry = CollectorRegistry()
    registry.register(Families(list(families.values())))
    return generate_latest(registry)
