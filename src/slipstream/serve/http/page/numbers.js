// What the chunks of one answer say about its speculation, and when they came.

export class Numbers {
  constructor(now) {
    this.asked = now; // all times in ms
    this.first = this.last = null;
    this.tokens = this.drafted = this.cycles = this.emitted = 0;
  }

  // A chunk came: one cycle's, but for the first, which is the prompt's forward.
  see({ tokens, accepted }, now) {
    if (!tokens) return;
    if (this.first === null) {
      this.first = now;
    } else {
      this.cycles += 1;
      this.emitted += tokens;
    }
    this.tokens += tokens;
    this.drafted += accepted;
    this.last = now;
  }

  get acceptLength() {
    return this.cycles ? this.emitted / this.cycles : null;
  }

  // Of the tokens after the first.
  get tokensPerSecond() {
    return this.last > this.first ? (1000 * this.emitted) / (this.last - this.first) : null;
  }

  get firstTokenMs() {
    return this.first === null ? null : this.first - this.asked;
  }
}
