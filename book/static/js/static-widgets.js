// Draws the book's widgets on a page with no kernel. MyST-NB leaves each widget's state and place in the page as JSON; this
// host gives the state to the widget's own front end. Nothing is fetched, so it also works from file://.
(() => {
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]';

  function bytes({ data, encoding }) {
    const raw = encoding === "hex" ? (data.match(/../g) ?? []).map((pair) => parseInt(pair, 16)) : Array.from(atob(data), (letter) => letter.charCodeAt(0));
    return new DataView(Uint8Array.from(raw).buffer);
  }

  // Binary values are stored beside the state; each goes back to its path in it.
  function restored({ state, buffers = [] }) {
    for (const buffer of buffers) buffer.path.slice(0, -1).reduce((at, key) => at[key], state)[buffer.path.at(-1)] = bytes(buffer);
    return state;
  }

  class Model {
    #state; #listeners = [];
    constructor(state) { this.#state = state; }
    get(name) { return this.#state[name]; }
    set(name, value) {
      if (this.#state[name] === value) return;
      this.#state[name] = value;
      for (const listener of this.#listeners.filter((one) => one.event === `change:${name}` || one.event === "change")) listener.call(this, value);
    }
    on(events, call) { for (const event of events.split(" ")) this.#listeners.push({ event, given: call, call }); }
    off(event, call) { this.#listeners = this.#listeners.filter((one) => (event && one.event !== event) || (call && one.given !== call)); }
    save_changes() {} // no kernel to tell
    send() {}
  }

  function note(place, words) {
    const saved = document.createElement("div"), said = document.createElement("p");
    const picture = place.parentElement?.querySelector("noscript") ?? place.closest(".cell_output")?.querySelector("noscript");
    saved.className = "static-widget-note";
    said.textContent = picture ? `${words} Its saved picture:` : words;
    saved.append(said);
    if (picture) saved.insertAdjacentHTML("beforeend", picture.textContent);
    place.before(saved);
  }

  async function main() {
    const entries = {}, models = new Map(), modules = new Map(), styles = new Set();
    for (const tag of document.querySelectorAll(STATE)) Object.assign(entries, JSON.parse(tag.textContent).state);
    const front = (source) => {
      if (!modules.has(source)) {
        const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        modules.set(source, import(url).then((module) => (typeof module.default === "function" ? module.default() : module.default)));
      }
      return modules.get(source);
    };
    for (const tag of document.querySelectorAll(VIEW)) {
      const id = JSON.parse(tag.textContent).model_id, entry = entries[id];
      if (entry?.model_module !== "anywidget") {
        note(tag, "This widget needs a running notebook.");
        continue;
      }
      const place = document.createElement("div");
      place.className = "static-widget";
      try {
        const fresh = !models.has(id), model = models.get(id) ?? new Model(restored(entry));
        models.set(id, model); // several views of one model move together
        const style = model.get("_css");
        if (style && !styles.has(style)) {
          styles.add(style);
          document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
        }
        tag.before(place);
        const widget = await front(model.get("_esm"));
        if (fresh) await widget.initialize?.({ model });
        await widget.render({ model, el: place });
        place.dataset.ready = "true";
      } catch (error) {
        console.error("A widget could not be drawn.", error);
        place.remove();
        note(tag, "This widget could not be drawn.");
      }
    }
  }

  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", main) : main();
})();
