// State that several parts of the page share. A component that calls `use` is drawn again when the state changes.

import { useLayoutEffect, useReducer } from "./vendor/htm-preact-3.1.1.module.js";

export class Store {
  #state;
  #listeners = new Set();

  constructor(state) {
    this.#state = state;
  }

  get state() {
    return this.#state;
  }

  set(changes) {
    this.#state = { ...this.#state, ...changes };
    for (const listener of [...this.#listeners]) listener();
  }

  use() {
    const [, redraw] = useReducer((count) => count + 1, 0);
    const drawn = this.#state;
    useLayoutEffect(() => {
      this.#listeners.add(redraw);
      if (drawn !== this.#state) redraw();
      return () => this.#listeners.delete(redraw);
    }, [this]);
    return this.#state;
  }
}
