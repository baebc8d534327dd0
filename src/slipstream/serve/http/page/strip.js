// The last cycles as a strip: above the axis what each cost, by stage; below what it brought, accepted drafts and own.

const SHOWN = 64; // cycles; also the width of the strip's viewBox
const AXIS = 70, DEPTH = 27, BAR = 0.74; // of a height of 100 and a width of 1
const STAGES = {
  extend: "the draft reads what was accepted",
  propose: "the draft guesses",
  verify: "the target checks all guesses at once",
  accept: "which of them are kept",
  cycle: "a cycle on a device that does not tell its stages apart",
  host: "the loop around the cycles",
};
const PREFILL = "the prompt before it, drawn as a line";

export class Strip {
  constructor(svg, legend, scale) {
    Object.assign(this, { svg, legend, scale, cycles: [] });
  }

  get last() {
    return this.cycles.at(-1)?.cycle ?? 0;
  }

  clear() {
    this.cycles = [];
  }

  add(cycles) {
    if (!cycles.length) return;
    this.cycles = [...this.cycles, ...cycles].slice(-SHOWN);
    this.draw();
  }

  draw() {
    const costs = this.cycles.map(cost).sort((one, other) => one - other);
    const most = Math.min(costs.at(-1), 3 * costs[costs.length >> 1]); // one slow cycle does not flatten the others
    const deepest = Math.max(2, ...this.cycles.map((each) => each.emitted_tokens / each.batch));
    const offset = SHOWN - this.cycles.length;
    const bars = this.cycles.map((each, place) => bar(each, offset + place, most, deepest));
    this.svg.replaceChildren(rect("axis", 0, AXIS, SHOWN, 0.5), ...bars);
    const mean = costs.reduce((sum, each) => sum + each, 0) / costs.length;
    this.scale.textContent = `mean ${milliseconds(mean)}, scale to ${milliseconds(most)}`;
    this.svg.setAttribute("aria-label", `${costs.length} cycles, ${milliseconds(mean)} on average`);
    this.legend.replaceChildren(...this.rows(mean));
  }

  rows(mean) {
    const found = [];
    for (const [stage, meaning] of Object.entries(STAGES)) {
      const seconds = this.cycles.reduce((sum, each) => sum + (each.stage_seconds[stage] ?? 0), 0) / this.cycles.length;
      if (seconds / mean >= 0.0005) found.push(row(stage, meaning, seconds, `${((100 * seconds) / mean).toFixed(1)}%`));
    }
    const prefill = this.cycles.findLast((each) => each.stage_seconds.prefill > 0);
    if (prefill) found.push(row("prefill", PREFILL, prefill.stage_seconds.prefill, "last"));
    return found;
  }
}

function cost({ stage_seconds: seconds }) {
  return Object.keys(STAGES).reduce((sum, stage) => sum + (seconds[stage] ?? 0), 0);
}

function bar(cycle, x, most, deepest) {
  const group = element("g"), own = DEPTH / deepest;
  const accepted = own * (cycle.emitted_tokens / cycle.batch - 1);
  let top = AXIS;
  for (const stage of Object.keys(STAGES)) {
    const height = Math.min(((cycle.stage_seconds[stage] ?? 0) / most) * AXIS, top);
    top -= height;
    if (height) group.append(rect(stage, x, top, BAR, height));
  }
  if (cycle.stage_seconds.prefill > 0) group.append(rect("prefill", x - 0.2, 0, 0.14, AXIS));
  if (accepted > 0) group.append(rect("drafted", x, AXIS + 3, BAR, accepted));
  group.append(rect("own", x, AXIS + 3 + Math.max(accepted, 0), BAR, own));
  group.append(title(cycle));
  return group;
}

function title(cycle) {
  const found = element("title"), kept = cycle.emitted_tokens - cycle.batch;
  const requests = cycle.batch === 1 ? "1 request" : `${cycle.batch} requests`;
  const drafts = `${kept} of ${cycle.proposed_tokens} drafted tokens accepted`;
  found.textContent = `cycle ${cycle.cycle}: ${milliseconds(cost(cycle))}, ${requests}, ${drafts}`;
  return found;
}

function row(stage, meaning, seconds, share) {
  const found = document.createElement("tr");
  found.title = meaning;
  for (const text of [stage, milliseconds(seconds), share]) found.insertCell().textContent = text;
  found.cells[0].prepend(Object.assign(document.createElement("i"), { className: stage }));
  return found;
}

function rect(kind, x, y, width, height) {
  const found = element("rect");
  found.setAttribute("class", kind);
  for (const [name, value] of Object.entries({ x, y, width, height })) found.setAttribute(name, value);
  return found;
}

function element(name) {
  return document.createElementNS("http://www.w3.org/2000/svg", name);
}

function milliseconds(seconds) {
  const ms = 1000 * seconds;
  return `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}
