// The front end of every Explorer. Python computed all states; this file chooses one and draws it, and computes no result.
const SVG = "http://www.w3.org/2000/svg";
const SIGNS = { ok: "✓", warn: "!", bad: "✗", plain: "" };
const DASHES = ["", "6 2", "2 2", "8 2 2 2", "4 1 1 1 1 1", "1 1"];

function node(space, tag, attributes, children) {
  const made = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) if (value !== undefined && value !== false) made.setAttribute(name, value);
  made.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== ""));
  return made;
}
const h = (tag, attributes, ...children) => node(null, tag, attributes, children);
const s = (tag, attributes, ...children) => node(SVG, tag, attributes, children);
const minus = (text) => String(text).replace(/^-/, "−");
const print = (value, decimals) => (typeof value === "number" ? minus(value.toFixed(decimals)) : value);
const brief = (value) => (typeof value === "number" ? minus(Number(value.toPrecision(6))) : value);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const named = (axis, i) => `${axis.labels?.[i] ?? (axis.start ?? 0) + i}${axis.unit ? ` ${axis.unit}` : ""}`;

// An array is a JSON list, or a place in the shared block of integers (see packing.py).
function reader(view) {
  const known = new WeakMap();
  return (stored) => {
    if (Array.isArray(stored)) return { data: stored.flat(), shape: Array.isArray(stored[0]) ? [stored.length, stored[0].length] : [stored.length] };
    if (known.has(stored)) return known.get(stored);
    const count = stored.shape.reduce((a, b) => a * b, 1), data = new Float64Array(count), unit = 10 ** stored.decimals;
    const get = { u1: (i) => view.getUint8(stored.at + i), u2: (i) => view.getUint16(stored.at + 2 * i, true), i4: (i) => view.getInt32(stored.at + 4 * i, true), f8: (i) => view.getFloat64(stored.at + 8 * i, true) }[stored.type];
    for (let i = 0; i < count; i++) data[i] = (get(i) + stored.low) / unit;
    const read = { data, shape: stored.shape };
    known.set(stored, read);
    return read;
  };
}

function palette(stops) {
  const rgb = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (rgb.length - 1), k = Math.min(Math.floor(at), rgb.length - 2);
    return rgb[k].map((low, channel) => Math.round(low + (at - k) * (rgb[k + 1][channel] - low)));
  });
}
const shade = (colours, value, [low, high]) => colours[clamp(Math.round((255 * (value - low)) / (high - low || 1)), 0, 255)];

// Round tick values of a continuous axis, and evenly spaced entries (a power of two apart) of an index axis.
function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw)), step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}
function entries(count, most) {
  let step = 1;
  while (count / step > most) step *= 2;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}
const text = (x, y, words, anchor = "middle", extra = {}) => s("text", { x, y, "text-anchor": anchor, ...extra }, words);

// A titled picture whose entries can be read with the pointer or, once it has the focus, with the arrow keys.
function plot(panel, alt, { width, height, layers, cursor, at, move, describe, below = [], above = [] }) {
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const detail = h("p", { class: "pg-detail", "aria-live": "polite" }, "Point at the picture, or focus it and press arrow keys, to read its numbers.");
  const stage = h("div", { class: "pg-stage", tabindex: "0", role: "application", "aria-roledescription": "readable picture", "aria-label": `${panel.title}: arrow keys read its numbers` });
  const pointer = s("g", { class: "pg-pointer" });
  for (const layer of layers) layer instanceof SVGElement ? svg.append(layer) : stage.append(layer);
  if (!layers.some((layer) => layer instanceof HTMLCanvasElement)) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", alt); svg.removeAttribute("aria-hidden"); }
  svg.append(pointer);
  stage.append(svg);
  stage.style.height = `${height}px`;
  const put = (next) => {
    if (!next) return;
    Object.assign(cursor, next, { shown: true });
    const { words, marks } = describe(cursor);
    pointer.replaceChildren(...marks);
    detail.textContent = words;
  };
  stage.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    put(at(event.clientX - box.left, event.clientY - box.top));
  });
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9], PageUp: [-8, -8], PageDown: [8, 8] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    put(cursor.shown ? move(...step) : move(0, 0));
  });
  if (cursor.shown) put(move(0, 0));
  return h("figure", { class: "pg-plot" }, h("figcaption", {}, panel.title), ...above, stage, ...below, detail);
}

function heatMap(panel, { read, colours, ramps, width, cursor }) {
  const { data, shape: [rows, stored] } = read(panel.values), masked = panel.masked && read(panel.masked).data;
  const order = panel.order ? Array.from(read(panel.order).data) : Array.from({ length: stored }, (_, i) => i), columns = order.length;
  const scale = panel.scale ?? "sequential", [low, high] = panel.limits, cell = (r, c) => data[r * stored + order[c]];
  const rowNames = Array.from({ length: rows }, (_, i) => named(panel.rows, i)), columnNames = order.map((_, i) => named(panel.columns, i));
  const left = 30 + 7.5 * Math.max(...rowNames.map((name) => name.length)), top = 8, right = 10;
  const wide = Math.min(width - left - right, columns * 44), square = (rows * wide) / columns;
  const tall = Math.min(400, Math.max(square, Math.min(rows * 18, 160))), dx = wide / columns, dy = tall / rows;

  const canvas = h("canvas", { width: columns, height: rows, role: "img", "aria-label": panel.alt || `${panel.title}: ${rows} rows by ${columns} columns, colours from ${brief(low)} to ${brief(high)}` });
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${wide}px`, height: `${tall}px` });
  const pixels = new ImageData(columns, rows);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    if (masked?.[r * stored + order[c]]) continue; // stays transparent: the hatching behind the canvas shows
    pixels.data.set(shade(colours[scale], cell(r, c), panel.limits), 4 * (r * columns + c));
    pixels.data[4 * (r * columns + c) + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);

  const axis = s("g", { class: "pg-axis" },
    entries(rows, tall / 18).map((i) => text(left - 6, top + (i + 0.5) * dy + 4, rowNames[i], "end")),
    entries(columns, wide / (6 + 7.5 * Math.max(...columnNames.map((name) => name.length)))).map((i) => text(left + (i + 0.5) * dx, top + tall + 16, columnNames[i])),
    text(left + wide / 2, top + tall + 34, panel.columns.label),
    text(0, 0, panel.rows.label, "middle", { transform: `translate(13 ${top + tall / 2}) rotate(-90)` }));
  const describe = ({ r, c }) => {
    const more = [...Object.entries(panel.row_hover ?? {}).map(([name, list]) => [name, read(list).data[r]]), ...Object.entries(panel.column_hover ?? {}).map(([name, list]) => [name, read(list).data[c]]),
      ...Object.entries(panel.cell_hover ?? {}).map(([name, cells]) => [name, cells.rows ? read(cells.rows).data[r] * read(cells.columns).data[c] : read(cells).data[r * columns + c]])];
    const value = masked?.[r * stored + order[c]] ? "masked" : `${panel.value_label ?? "value"} ${print(cell(r, c), panel.decimals)}`;
    return { words: [`${panel.rows.label} ${rowNames[r]}`, `${panel.columns.label} ${columnNames[c]}`, value, ...more.map(([name, v]) => `${name} ${brief(v)}`)].join(" · "),
      marks: [s("rect", { x: left + c * dx, y: top + r * dy, width: dx, height: dy })] };
  };
  const inside = (r, c) => ({ r: clamp(r, 0, rows - 1), c: clamp(c, 0, columns - 1) });
  const bar = h("div", { class: "pg-scale" }, h("span", {}, brief(low)), h("i", { style: `background:linear-gradient(to right,${ramps[scale].join(",")})` }), h("span", {}, brief(high)),
    masked ? h("span", { class: "pg-masked-key" }, "masked") : "");
  return plot(panel, "", { width, height: top + tall + 42, layers: [canvas, axis], cursor, describe, below: [bar],
    at: (x, y) => (x >= left && x < left + wide && y >= top && y < top + tall ? inside(Math.floor((y - top) / dy), Math.floor((x - left) / dx)) : null),
    move: (down, along) => inside((cursor.r ?? 0) + down * (Math.abs(along) > 8 ? 0 : 1), (cursor.c ?? 0) + (Math.abs(down) > 1 ? 0 : along)) });
}

// Axes of a picture with numbers upwards: returns the scale, the drawn axes and the geometry.
function upright(width, limits, yLabel, xLabel, xTicks, xAt, lines = 1) {
  const [low, high] = limits, left = 62, top = 14, tall = 220, wide = width - left - 14;
  const y = (value) => top + tall - ((value - low) / (high - low)) * tall;
  const grid = ticks(low, high, 5).map((v) => [s("line", { class: "pg-grid", x1: left, x2: left + wide, y1: y(v), y2: y(v) }), text(left - 6, y(v) + 4, brief(v), "end")]);
  const bottom = xTicks(wide).map(([at, words], n) => text(xAt(at, left, wide), top + tall + 17 + 15 * (n % lines), words)), below = top + tall + 15 * (lines - 1);
  return { left, top, tall, wide, y, height: below + 42, axes: s("g", { class: "pg-axis" }, grid, bottom,
    text(left + wide / 2, below + 35, xLabel), text(0, 0, yLabel, "middle", { transform: `translate(13 ${top + tall / 2}) rotate(-90)` })) };
}

function lines(panel, { read, width, cursor }) {
  const x = read(panel.x).data, last = x.length - 1, scale = panel.log_x ? Math.log : (v) => v;
  const [a, b] = [scale(x[0]), scale(x[last])], span = b - a || 1, curves = panel.series.map((one) => ({ ...one, data: read(one.values).data }));
  const pad = (panel.limits[1] - panel.limits[0]) * 0.04, xAt = (v, left, wide) => left + ((scale(v) - a) / span) * wide;
  const xTicks = (wide) => {
    if (!panel.log_x) return ticks(x[0], x[last] > x[0] ? x[last] : x[0] + 1, wide / 55).map((v) => [v, brief(v)]);
    const base = x[last] / x[0] > 2000 ? 10 : 2, powers = [];
    for (let k = Math.ceil(Math.log(x[0]) / Math.log(base) - 1e-9); base ** k <= x[last] * 1.0001; k++) powers.push(base ** k);
    return entries(powers.length, wide / 70).map((i) => [powers[i], brief(powers[i])]);
  };
  const g = upright(width, [panel.limits[0] - pad, panel.limits[1] + pad], panel.y_label ?? "value", panel.x_label ?? "x", xTicks, xAt);
  const px = (i) => xAt(x[i], g.left, g.wide).toFixed(1), py = (v) => g.y(v).toFixed(1), paths = curves.map((curve, k) => {
    let d = "";
    for (let i = 0; i <= last; i++) {
      const [u, v] = [px(i), py(curve.data[i])];
      d += curve.kind === "points" ? `M${u - 2.5},${v - 2.5}h5v5h-5z` : i === 0 ? `M${u},${v}` : curve.kind === "step" ? `H${u}V${v}` : `L${u},${v}`;
    }
    return s("path", { d, class: curve.kind === "points" ? "pg-points" : "pg-line", style: `--pg-colour:var(--pg-c${k})`, "stroke-dasharray": DASHES[k] });
  });
  const marks = (panel.marks ?? []).map((mark, k) => {
    const at = xAt(mark.x, g.left, g.wide), near = at > g.left + g.wide / 2;
    return s("g", { class: "pg-mark" }, s("line", { x1: at, x2: at, y1: g.top, y2: g.top + g.tall }), text(at + (near ? -4 : 4), g.top + 11 + 14 * (k % 4), mark.label, near ? "end" : "start"));
  });
  const key = h("ul", { class: "pg-key" }, curves.map((curve, k) => h("li", {}, s("svg", { width: 28, height: 10, "aria-hidden": "true" },
    s("path", { d: curve.kind === "points" ? "M11,2h6v6h-6z" : "M0,5H28", class: curve.kind === "points" ? "pg-points" : "pg-line", style: `--pg-colour:var(--pg-c${k})`, "stroke-dasharray": DASHES[k] })), curve.name)));
  const digits = (data) => (data.every(Number.isInteger) ? 0 : panel.decimals);
  const alt = panel.alt || `${panel.title}: ${curves.map((c) => `${c.name} from ${print(Math.min(...c.data), digits(c.data))} to ${print(Math.max(...c.data), digits(c.data))}`).join("; ")}`;
  const describe = ({ i }) => ({ words: [`${panel.x_label ?? "x"} ${brief(x[i])}`, ...curves.map((c) => `${c.name} ${print(c.data[i], digits(c.data))}`)].join(" · "),
    marks: [s("line", { x1: px(i), x2: px(i), y1: g.top, y2: g.top + g.tall }), ...curves.map((c, k) => s("circle", { cx: px(i), cy: py(c.data[i]), r: 4, style: `--pg-colour:var(--pg-c${k})` }))] });
  return plot(panel, alt, { width, height: g.height, layers: [g.axes, ...paths, ...marks], cursor, describe, above: curves.length > 1 ? [key] : [],
    at: (u) => {
      const wanted = a + ((u - g.left) / g.wide) * span;
      let best = 0;
      for (let i = 1; i <= last; i++) if (Math.abs(scale(x[i]) - wanted) < Math.abs(scale(x[best]) - wanted)) best = i;
      return { i: best };
    },
    move: (down, along) => ({ i: clamp((cursor.i ?? 0) + (along || -down), 0, last) }) });
}

function bars(panel, { read, width, cursor }) {
  const values = read(panel.values).data, count = values.length, lit = new Set(panel.highlight ?? []), names = panel.labels.map(String);
  const [low, high] = panel.limits, room = (high - Math.min(low, 0)) * 0.04;
  const xAt = (i, left, wide) => left + ((i + 0.5) / count) * wide, longest = Math.max(...names.map((name) => name.length));
  // Numbers may be left out between others; words may not, so where one line has no room for them they take turns on two.
  const most = (wide) => wide / (12 + 7.5 * longest), lines = names.some((name) => isNaN(name)) && count > most(width - 76) ? 2 : 1;
  const g = upright(width, [Math.min(low, 0), Math.max(high, 0) + room], panel.value_label ?? "value", panel.label ?? "index", (wide) => entries(count, lines * most(wide)).map((i) => [i, names[i]]), xAt, lines);
  const band = g.wide / count, zero = g.y(0), drawn = Array.from(values, (v, i) => s("rect", { class: lit.has(i) ? "pg-bar pg-lit" : "pg-bar",
    x: xAt(i, g.left, g.wide) - band * 0.4, width: Math.max(band * 0.8, 1), y: Math.min(g.y(v), zero), height: Math.abs(g.y(v) - zero) }));
  const alt = panel.alt || `${panel.title}: ${count} bars from ${print(Math.min(...values), panel.decimals)} to ${print(Math.max(...values), panel.decimals)}`;
  return plot(panel, alt, { width, height: g.height, layers: [g.axes, ...drawn, s("line", { class: "pg-zero", x1: g.left, x2: g.left + g.wide, y1: zero, y2: zero })], cursor,
    at: (u) => ({ i: clamp(Math.floor((u - g.left) / band), 0, count - 1) }),
    move: (down, along) => ({ i: clamp((cursor.i ?? 0) + (along || -down), 0, count - 1) }),
    describe: ({ i }) => ({ words: `${panel.label ?? "index"} ${names[i]} · ${panel.value_label ?? "value"} ${print(values[i], panel.decimals)}`,
      marks: [s("rect", { x: xAt(i, g.left, g.wide) - band / 2, width: band, y: g.top, height: g.tall })] }) });
}

function scrolled(label, table) {
  return h("div", { class: "pg-scroll", role: "group", "aria-label": label }, table);
}

function matrix(panel, { read, colours }) {
  const { data, shape: [rows, columns] } = read(panel.values), masked = panel.masked && read(panel.masked).data;
  const lit = new Set((panel.highlight ?? []).map(([r, c]) => r * columns + c));
  const most = panel.shade && Math.max(...data.map(Math.abs)), limits = panel.shade === "diverging" ? [-most || -1, most || 1] : [Math.min(...data), Math.max(...data)];
  const cell = (i) => {
    const classes = [lit.has(i) ? "pg-lit" : "", masked?.[i] ? "pg-masked" : ""].join(" ").trim();
    if (masked?.[i]) return h("td", { class: classes, title: "masked" }, "·");
    if (!panel.shade) return h("td", { class: classes || undefined }, String(print(data[i], panel.decimals)));
    const [r, g, b] = shade(colours[panel.shade], data[i], limits), light = [r, g, b].reduce((sum, v, k) => sum + [0.2126, 0.7152, 0.0722][k] * (v / 255) ** 2.2, 0);
    const ink = light > 0.18 ? "#000" : "#fff"; // the better of the two is always above 4.5 : 1
    return h("td", { class: classes || undefined, style: `background:rgb(${r},${g},${b});color:${ink}` }, String(print(data[i], panel.decimals)));
  };
  const head = panel.column_labels && h("thead", {}, h("tr", {}, panel.row_labels ? h("td", {}) : "", panel.column_labels.map((name) => h("th", { scope: "col" }, String(name)))));
  const body = h("tbody", {}, Array.from({ length: rows }, (_, r) => h("tr", {}, panel.row_labels ? h("th", { scope: "row" }, String(panel.row_labels[r])) : "", Array.from({ length: columns }, (_, c) => cell(r * columns + c)))));
  return h("figure", { class: "pg-matrix" }, h("figcaption", {}, panel.title), scrolled(panel.title, h("table", { "aria-label": panel.title }, head ?? "", body)), panel.note ? h("p", {}, panel.note) : "");
}

function table(panel) {
  const lit = new Set(panel.highlight ?? []);
  return h("figure", { class: "pg-table" }, h("figcaption", {}, panel.title), scrolled(panel.title, h("table", { "aria-label": panel.title },
    h("thead", {}, h("tr", {}, panel.columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, (panel.rows ?? []).map((row, i) => h("tr", { class: lit.has(i) ? "pg-lit" : undefined }, row.map((v) => h("td", {}, minus(v)))))))), panel.note ? h("p", {}, panel.note) : "");
}

const said = (value) => (typeof value === "boolean" ? (value ? "yes" : "no") : minus(value));
const DRAW = {
  HeatMap: heatMap, Lines: lines, Bars: bars, Table: table,
  Matrices: (panel, tools) => h("div", { class: "pg-matrices", role: "group", "aria-label": panel.title || undefined }, panel.items.map((one) => matrix(one, tools))),
  Badges: (panel) => h("ul", { class: "pg-badges" }, panel.items.map(({ label, value, status = "plain" }) => h("li", { class: `pg-${status}` }, h("span", {}, label), h("b", {}, SIGNS[status] && h("i", { "aria-hidden": "true" }, SIGNS[status]), said(value))))),
  Text: (panel) => h(panel.code ? "pre" : "p", { class: "pg-text" }, panel.text),
};

function input(control, i, choose) {
  const id = `pg-${Math.random().toString(36).slice(2)}`;
  if (control.kind === "slider") {
    const slider = h("input", { id, type: "range", min: 0, max: control.labels.length - 1, step: 1 }), shown = h("output", { for: id });
    slider.addEventListener("input", () => choose(i, Number(slider.value)));
    return [h("div", { class: "pg-control" }, h("label", { for: id }, control.label), slider, shown), (at) => {
      slider.value = at; slider.setAttribute("aria-valuetext", control.labels[at]); shown.textContent = control.labels[at];
    }];
  }
  if (control.labels.length > 4) {
    const select = h("select", { id }, control.labels.map((label, at) => h("option", { value: at }, label)));
    select.addEventListener("input", () => choose(i, Number(select.value)));
    return [h("div", { class: "pg-control" }, h("label", { for: id }, control.label), select), (at) => { select.value = at; }];
  }
  const radios = control.labels.map((_, at) => h("input", { type: "radio", name: id, value: at }));
  radios.forEach((radio, at) => radio.addEventListener("input", () => choose(i, at)));
  return [h("fieldset", { class: "pg-control" }, h("legend", {}, control.label), control.labels.map((label, at) => h("label", {}, radios[at], label))), (at) => { radios[at].checked = true; }];
}

function render({ model, el }) {
  const { name, title, question, captions, controls, ramps } = model.get("spec"), block = model.get("block"), [panels, states] = JSON.parse(model.get("store"));
  const read = reader(block instanceof DataView ? block : new DataView(block.buffer ?? block));
  const colours = { sequential: palette(ramps.sequential), diverging: palette(ramps.diverging) }, cursors = [], shown = [];
  const choose = (i, at) => { model.set("index", model.get("index").map((old, k) => (k === i ? at : old))); model.save_changes(); };
  const inputs = controls.map((control, i) => input(control, i, choose));
  const area = h("div", { class: "pg-panels" }), caption = h("p", { class: "pg-caption", "aria-live": "polite" });
  const form = h("form", { class: "pg-controls" }, inputs.map(([part]) => part));
  const root = h("div", { class: "pg-explorer", role: "group", "aria-label": title, "data-name": name }, h("p", { class: "pg-title" }, title), h("p", { class: "pg-question" }, question), form, area, caption,
    h("details", { class: "pg-help" }, h("summary", {}, "Keyboard"), h("p", {}, "Tab moves between the controls and the pictures. Arrow keys change a control, or move through the cells, points and bars of a picture; Home and End go to the ends of a row.")));

  const draw = (whole) => {
    const start = performance.now(), index = model.get("index"), width = Math.max(area.clientWidth || 640, 240);
    const [words, ...places] = states[index.reduce((at, k, i) => at * controls[i].labels.length + k, 0)];
    inputs.forEach(([, follow], i) => follow(index[i]));
    caption.textContent = captions[words];
    while (area.children.length > places.length) { area.lastChild.remove(); shown.pop(); }
    places.forEach((place, slot) => {
      if (!whole && shown[slot] === place) return; // the same stored panel: leave it, with its focus, as it is
      const panel = panels[place], old = area.children[slot], focused = old?.contains(document.activeElement);
      const made = DRAW[panel.kind](panel, { read, colours, ramps, width, cursor: (cursors[slot] ??= {}) });
      old ? old.replaceWith(made) : area.append(made);
      for (const part of made.querySelectorAll(".pg-scroll")) if (part.scrollWidth > part.clientWidth) part.tabIndex = 0; // else no stop for Tab
      if (focused) made.querySelector("[tabindex]")?.focus();
      shown[slot] = place;
    });
    performance.measure("explorer", { start, detail: name });
  };
  const change = () => draw(false);
  let width = 0;
  const resize = new ResizeObserver(() => { if (area.clientWidth && area.clientWidth !== width) { width = area.clientWidth; draw(true); } });
  root.addEventListener("keydown", (event) => event.stopPropagation()); // JupyterLab would take the arrow keys for itself
  form.addEventListener("submit", (event) => event.preventDefault());
  model.on("change:index", change);
  el.append(root);
  draw(true);
  resize.observe(area);
  return () => { resize.disconnect(); model.off("change:index", change); };
}

export default { render };
