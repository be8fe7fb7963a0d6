// The results of a search: what kind of page each is, and the words around the first place that was found. pages.js, which is
// written when the site is built, has the text.
"use strict";

(() => {
  const words = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const pages = window.LADDER_PAGES ?? {};
  const AROUND = 110;

  const excerpt = (text) => {
    const lower = text.toLowerCase();
    const places = words.map((word) => [lower.indexOf(word), word.length]).filter(([at]) => at >= 0);
    if (!places.length) return [document.createTextNode(text.slice(0, 2 * AROUND) + "…")];
    const [at, length] = places.sort((a, b) => a[0] - b[0])[0];
    const begin = Math.max(0, lower.lastIndexOf(" ", Math.max(0, at - AROUND)) + 1), end = Math.min(text.length, at + length + AROUND);
    const mark = document.createElement("mark");
    mark.textContent = text.slice(at, at + length);
    return [(begin ? "…" : "") + text.slice(begin, at), mark, text.slice(at + length, end) + (end < text.length ? "…" : "")];
  };
  const describe = (item) => {
    const link = item.querySelector("a");
    if (!link || item.dataset.described) return;
    item.dataset.described = "yes";
    const page = pages[link.getAttribute("href").split(/[?#]/)[0].replace(/^\.\//, "").replace(/\.html$/, "")];
    if (!page) return;
    const kind = document.createElement("span"), text = document.createElement("p");
    kind.className = "result-kind";
    kind.textContent = page.kind;
    link.before(kind, " ");
    text.className = "result-excerpt";
    text.append(...excerpt(page.text));
    item.append(text);
  };
  const results = document.getElementById("search-results");
  if (!results) return;
  new MutationObserver(() => results.querySelectorAll("li").forEach(describe)).observe(results, { childList: true, subtree: true });
})();
