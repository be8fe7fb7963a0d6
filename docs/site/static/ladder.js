// The parts of a page that answer: blanks in calculations, the bank-conflict calculator, and the lookup of fragments.
// No framework and no network. The formulas are those of docs/site/layouts.py, and a test compares the two.
"use strict";

(() => {
  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const select = (label, options, chosen) => {
    const made = element("select");
    for (const [value, text] of options) {
      const option = element("option", { value }, text);
      option.selected = String(value) === String(chosen);
      made.append(option);
    }
    return [element("label", {}, label, made), made];
  };
  // What an address such as page.html?stride=272 asks for, so that a state can be linked to.
  const asked = new URLSearchParams(location.search);

  // ---- blanks ----

  const decimals = (text) => (text.split(".")[1] ?? "").length;
  const significant = (text) => text.replace(".", "").replace(/^0+/, "").length;
  // What a typed text may mean: 1,298 is a thousand and more, 5,5 has a decimal comma, and 5,538 may be either.
  const readings = (text) => {
    const plain = text.trim().replace(/\s/g, "");
    const meant = [plain.replace(/^([1-9]\d{0,2})((?:,\d{3})+)(?=\.|$)/, (all) => all.replaceAll(",", "")), plain.replace(",", ".")];
    return meant.filter((number) => /^\d*\.?\d+$/.test(number));
  };
  // Right is the answer; of a figure that the answer rounds, also what rounds to the answer, and the figure to any other number of
  // digits, down to three.
  const isRight = (text, answer, exact) => {
    const number = Number(text), near = (other, places) => Math.abs(number - other) <= 0.5 * 10 ** -places * (1 + 1e-9);
    if (number === Number(answer)) return true;
    if (Number(answer) === exact) return false;
    return near(Number(answer), decimals(answer)) || (near(exact, decimals(text)) && significant(text) >= Math.min(3, significant(answer)));
  };

  for (const blank of document.querySelectorAll(".blank")) {
    const { answer, exact } = blank.dataset, shown = blank.textContent;
    const input = element("input", { type: "text", inputmode: "decimal", "aria-label": "your answer", autocomplete: "off" });
    const output = element("output");
    const button = element("button", { type: "button" }, "show");
    const judge = () => {
      const text = input.value.trim();
      const right = readings(text).some((number) => isRight(number, answer, Number(exact)));
      blank.classList.toggle("right", right);
      blank.classList.toggle("wrong", text !== "" && !right);
      output.textContent = text === "" ? "" : right ? "✓ right" : "✗ not yet";
    };
    input.addEventListener("change", judge);
    button.addEventListener("click", () => {
      input.value = shown;
      judge();
    });
    blank.replaceChildren(input, output, button);
  }

  // ---- bank conflicts ----

  const BANKS = 32, WORD = 4;
  // Each access: how many bytes a lane reads, and its (row, byte in the row).
  const ACCESSES = {
    k32: ["32-bit load of a K fragment (04–06)", 4, (lane) => [lane >> 2, (lane % 4) * 4]],
    v16: ["16-bit load of a V fragment (04–06)", 2, (lane) => [(lane % 4) * 2, (lane >> 2) * 2]],
    ldmatrix: ["ldmatrix, one 8×8 matrix (07 and later)", 16, (lane) => [lane % 8, 0], 8],
    column: ["a column: lane i reads 4 bytes of row i", 4, (lane) => [lane, 0]],
    row: ["a row: lane i reads word i of row 0", 4, (lane) => [0, lane * 4]],
  };

  function banks(part) {
    const [accessLabel, access] = select("access", Object.entries(ACCESSES).map(([k, v]) => [k, v[0]]), asked.get("access") ?? "k32");
    const stride = element("input", { type: "number", min: 4, max: 1024, step: 4, value: asked.get("stride") ?? 256 });
    const [swizzleLabel, swizzle] = select("swizzle", [["none", "none"], ["xor", "chunk ^ row % 8"]], asked.get("swizzle") ?? "none");
    const result = element("p", { role: "status", "aria-live": "polite", class: "result" });
    const grid = element("div", { class: "grid-scroll", tabindex: 0, role: "group", "aria-label": "lanes by bank" });
    const controls = element("div", { class: "controls" }, accessLabel, element("label", {}, "row stride in bytes", stride), swizzleLabel);
    part.replaceChildren(element("p", { class: "part-title" }, "Bank-conflict calculator"), controls, result, grid);

    const show = () => {
      const [, size, place, lanes = 32] = ACCESSES[access.value];
      const rowBytes = Number(stride.value);
      if (!(rowBytes >= 4 && rowBytes <= 1024 && rowBytes % 4 === 0)) {
        result.textContent = "The stride is a multiple of 4 bytes from 4 to 1,024.";
        grid.replaceChildren();
        return;
      }
      if (size === 16 && rowBytes % 16 !== 0) {
        result.textContent = "The rows of ldmatrix start at multiples of 16 bytes, so the stride has to be one, too.";
        grid.replaceChildren();
        return;
      }
      if (swizzle.value === "xor" && rowBytes % 128 !== 0) {
        result.textContent = "The swizzle permutes eight chunks of 16 bytes, so a row is a multiple of 128 bytes.";
        grid.replaceChildren();
        return;
      }
      const words = Array.from({ length: BANKS }, () => new Map());
      for (let lane = 0; lane < lanes; ++lane) {
        let [row, byte] = place(lane);
        if (swizzle.value === "xor") byte = ((byte >> 4) ^ row % 8) * 16 + (byte % 16);
        const address = row * rowBytes + byte;
        for (let word = address >> 2; word <= (address + size - 1) >> 2; ++word) {
          const bank = words[word % BANKS];
          bank.set(word, [...(bank.get(word) ?? []), lane]);
        }
      }
      const depth = Math.max(...words.map((found) => found.size));
      const useful = lanes * size;
      result.textContent =
        `${depth} wavefront${depth > 1 ? "s" : ""}: the busiest bank has ${depth} different word${depth > 1 ? "s" : ""}. ` +
        `${useful} bytes wanted, ${depth * BANKS * WORD} could have been delivered.`;
      part.dataset.wavefronts = depth;
      // All banks are in sight: where 32 columns have no room they are in two or four tables.
      const across = part.clientWidth >= 620 ? 32 : part.clientWidth >= 330 ? 16 : 8;
      const tables = [];
      for (let first = 0; first < BANKS; first += across) {
        const table = element("table", { class: "banks" });
        const shown = words.slice(first, first + across);
        table.append(element("tr", {}, element("th", { scope: "row" }, "bank"), ...shown.map((_, i) => element("th", { scope: "col" }, String(first + i)))));
        for (let i = 0; i < depth; ++i) {
          const row = element("tr", {}, element("th", { scope: "row" }, String(i + 1)));
          for (const found of shown) {
            const lanesHere = [...found.values()][i];
            const text = !lanesHere ? "" : lanesHere.length > 3 ? `${lanesHere[0]} … ${lanesHere.at(-1)}` : lanesHere.join(" ");
            row.append(element("td", lanesHere ? { class: `fill-${(lanesHere[0] >> 2) % 8}` } : {}, text));
          }
          table.append(row);
        }
        tables.push(table);
      }
      grid.replaceChildren(...tables);
    };
    for (const control of [access, stride, swizzle]) control.addEventListener("input", show);
    addEventListener("resize", show);
    show();
  }

  // ---- fragments ----

  const FRAGMENTS = {
    A: ["A: P, or Q [16 rows][16 k]", 16, 16, (row, col) => [(row % 8) * 4 + ((col % 8) >> 1), (row >> 3) + (col >> 3) * 2, col % 2]],
    B: ["B: Kᵀ, or V [16 k][8 columns]", 16, 8, (row, col) => [col * 4 + ((row % 8) >> 1), row >> 3, row % 2]],
    D: ["D: S, or O [16 rows][8 columns]", 16, 8, (row, col) => [(row % 8) * 4 + (col >> 1), (row >> 3) * 2 + (col % 2), null]],
  };

  function fragments(part) {
    const [whichLabel, which] = select("operand", Object.entries(FRAGMENTS).map(([k, v]) => [k, v[0]]), asked.get("operand") ?? "A");
    const result = element("p", { role: "status", "aria-live": "polite", class: "result" });
    const grid = element("div", { class: "grid-scroll" });
    part.replaceChildren(element("p", { class: "part-title" }, "Which lane holds which element"), element("div", { class: "controls" }, whichLabel), result, grid);
    let chosen = [Number(asked.get("row") ?? 5), Number(asked.get("col") ?? 9)];

    const show = (focus) => {
      const [, rows, cols, holder] = FRAGMENTS[which.value];
      chosen = [Math.min(Math.max(chosen[0], 0), rows - 1), Math.min(Math.max(chosen[1], 0), cols - 1)];
      const [lane, register, half] = holder(...chosen);
      result.textContent = `Element (${chosen.join(", ")}) of ${which.value}: lane ${lane}, register ${which.value}[${register}]` +
        (half === null ? ", an fp32 that fills it." : half ? ", its upper half." : ", its lower half.");
      part.dataset.lane = lane;
      part.dataset.register = register;
      const table = element("table", { role: "grid", "aria-label": `lanes of operand ${which.value}; arrow keys move` });
      table.append(element("tr", { role: "row" }, element("th", {}, ""), ...Array.from({ length: cols }, (_, col) => element("th", { scope: "col" }, String(col)))));
      for (let row = 0; row < rows; ++row) {
        const line = element("tr", { role: "row" }, element("th", { scope: "row" }, String(row)));
        for (let col = 0; col < cols; ++col) {
          const [itsLane, itsRegister] = holder(row, col);
          const here = row === chosen[0] && col === chosen[1];
          const classes = [`fill-${itsRegister}`, here ? "chosen" : itsLane === lane ? "same-lane" : ""].join(" ").trim();
          const cell = element("td", { role: "gridcell", tabindex: here ? 0 : -1, class: classes, "aria-label": `row ${row}, column ${col}: lane ${itsLane}, register ${itsRegister}` }, String(itsLane));
          cell.addEventListener("click", () => { chosen = [row, col]; show(true); });
          line.append(cell);
          if (here && focus) queueMicrotask(() => cell.focus());
        }
        table.append(line);
      }
      grid.replaceChildren(table);
    };
    const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    grid.addEventListener("keydown", (event) => {
      const move = KEYS[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      chosen = [chosen[0] + move[0], chosen[1] + move[1]];
      show(true);
    });
    which.addEventListener("input", () => show(false));
    show(false);
  }

  // ---- the reader's own prediction, judged as `harness --quiz` does (harness/app/quiz/quiz.cpp) ----

  function guess(part) {
    const { before, after, step, regime } = part.dataset, measured = Number(step);
    const input = element("input", { type: "text", inputmode: "decimal", autocomplete: "off", placeholder: "such as 2 or 0.8" });
    const button = element("button", { type: "button" }, "compare");
    const result = element("p", { role: "status", "aria-live": "polite", class: "result" });
    const question = `By what factor does ${after} change the TFLOP/s of ${before}?`;
    part.replaceChildren(element("p", { class: "part-title" }, question),
      element("div", { class: "controls" }, element("label", {}, "your factor", input), button), result);
    const compare = () => {
      const number = Number(input.value.trim().replace(",", ".").replace(/\s*[x×]$/, ""));
      if (!(number > 0 && number < Infinity)) {
        result.textContent = "Type a factor above 0, such as 2, or 0.8 if it gets slower.";
        return;
      }
      const off = Math.abs(Math.log(number / measured));
      const wrongWay = (number - 1) * (measured - 1) < 0 && Math.abs(measured - 1) > 0.01;
      const verdict = off <= Math.log(1.05) ? "within 5 %"
        : `too ${number > measured ? "much" : "little"} by a factor of ${Math.exp(off).toFixed(2)}${wrongWay ? ", in the opposite direction" : ""}`;
      result.textContent = `You ${number.toFixed(2)}×, measured ${measured.toFixed(2)}× (${regime}, seq_len 4096). Your guess: ${verdict}.`;
      if (part.nextElementSibling?.matches("details.prediction")) part.nextElementSibling.open = true;
    };
    button.addEventListener("click", compare);
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") compare(); });
  }

  // ---- code: a button that copies it; drawings made of characters are not wrapped ----

  for (const code of document.querySelectorAll("article div.highlight > pre")) {
    if (/[─│┌┐└┘├┤┬┴┼╭╮╯╰═║]/.test(code.textContent)) code.classList.add("characters");
    const button = element("button", { type: "button", class: "copy-code", "aria-label": "copy this code" }, "copy");
    button.addEventListener("click", async () => {
      const copied = code.cloneNode(true);
      copied.querySelectorAll(".linenos").forEach((number) => number.remove());
      try {
        await navigator.clipboard.writeText(copied.textContent.trimEnd());
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
    code.parentElement.append(button);
  }

  // ---- a link to a line of the folded listing opens it ----

  const unfold = () => {
    const line = document.getElementById(decodeURIComponent(location.hash.slice(1))), listing = line?.closest("details");
    if (!listing || listing.open) return;
    listing.open = true;
    line.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  // ---- ← and → turn pages, except where they move something ----

  addEventListener("keydown", (event) => {
    const which = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    if (!which || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.target.closest?.("input, textarea, select, button, [tabindex], [contenteditable], summary")) return;
    const page = document.querySelector(`link[rel="${which}"]`);
    if (page) location.href = page.href;
  });

  const PARTS = { banks, fragments, guess };
  for (const part of document.querySelectorAll(".interactive")) PARTS[part.dataset.part](part);
})();
