// The page of `--diff A B --html FILE`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/card/opcode_counts.h"
#include "app/card/source_text.h"
#include "app/compare/comparison_data.h"
#include "app/compare/comparison_verdict.h"
#include "app/compare/sass_alignment.h"
#include "errors.h"
#include "results/counter_text.h"
#include "rules/support.h"
#include "sass/machine_code.h"
#include "sass/sass_listing.h"

namespace flash_ladder {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1a1a1a; --faint: #5c5c5c; --line: #d0d0d0; --raised: #f4f4f2;
  --from: #b3261e; --to: #0b57a4; --gone: #fbe4e2; --come: #dff0e0; }
@media (prefers-color-scheme: dark) { :root { --page: #16181a; --ink: #e6e6e6; --faint: #a8a8a8; --line: #3c4043; --raised: #202326;
  --from: #ff9d94; --to: #8ec5ff; --gone: #47211f; --come: #1d3a22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
a { color: var(--to); } nav { position: sticky; top: 0; background: var(--page); padding: .25rem 0; } .here td, span.here { outline: 2px solid var(--to); outline-offset: -2px; }
button { font: inherit; color: inherit; background: var(--raised); border: 1px solid var(--line); padding: .125rem .5rem; }
.equal summary { color: var(--faint); } nav a { display: inline-block; margin-right: 1rem; padding: .25rem 0; }
code, pre, .sass td { font: .8125rem/1.45 ui-monospace, monospace; }
pre, .scroll { overflow-x: auto; } pre { padding: .75rem; background: var(--raised); margin: 0; }
pre span { display: block; min-width: max-content; } .del, .sass .only-from { background: var(--gone); }
.add, .sass .only-to { background: var(--come); } .hunk, .faint, caption, .place { color: var(--faint); }
dl { display: grid; grid-template-columns: minmax(5rem, 8rem) 1fr; gap: .25rem 1rem; } dt { font-weight: 600; } dd { margin: 0; }
table { border-collapse: collapse; } caption { text-align: left; padding: .25rem 0; }
th, td { padding: .125rem .5rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { font-weight: 600; } th:first-child, td:first-child, .sass th, .sass td, .lines td:first-child { text-align: left; }
.sass { table-layout: fixed; width: 100%; } .sass td { overflow-wrap: anywhere; } .place { font-size: .6875rem; }
summary { cursor: pointer; padding: .25rem 0; } figure { margin: 0; max-width: 44rem; } svg { width: 100%; height: auto; }
svg text { fill: currentColor; font: 14px system-ui, sans-serif; } svg .axis { stroke: var(--line); }
svg .from { stroke: var(--from); fill: none; stroke-dasharray: 6 4; } svg .to { stroke: var(--to); fill: none; }
svg .from-dot { fill: var(--from); } svg .to-dot { fill: var(--to); } svg text.from-text { fill: var(--from); }
svg text.to-text { fill: var(--to); }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } th, td { padding: .125rem .25rem; }
  td, th { font-size: .8125rem; } }
)";

// Adds the keys n and p and two buttons, which jump to the next or the previous run of rows that differ and open folded
// parts on the way.
constexpr std::string_view kScript = R"(
(() => {
  const places = [...document.querySelectorAll('[data-difference]')];
  let at = -1;
  const go = (step) => {
    if (!places.length) return;
    at = at < 0 && step < 0 ? places.length - 1 : (at + step + places.length) % places.length;
    document.querySelector('.here')?.classList.remove('here');
    const place = places[at];
    for (let part = place.closest('details'); part; part = part.parentElement.closest('details')) part.open = true;
    place.classList.add('here');
    place.scrollIntoView({ block: 'center' });
  };
  for (const button of document.querySelectorAll('[data-step]'))
    button.addEventListener('click', () => go(Number(button.dataset.step)));
  document.addEventListener('keydown', (event) => {
    const step = { n: 1, p: -1 }[event.key];
    if (step && !event.ctrlKey && !event.metaKey && !event.altKey) go(step);
  });
})();
)";

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  return safe;
}

std::string section(const char* id, const char* title, const std::string& content) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, title, content);
}

std::string paragraph(const std::string& text) { return fmt::format("<p>{}</p>\n", escaped(text)); }

// A table whose first column names its rows. Its cells are text.
class HtmlTable {
 public:
  HtmlTable(const std::string& caption, const std::vector<std::string>& headings) {
    text_ = fmt::format("<div class=\"scroll\" tabindex=\"0\"><table>\n<caption>{}</caption>\n<tr>", escaped(caption));
    for (const std::string& heading : headings) text_ += fmt::format("<th scope=\"col\">{}</th>", escaped(heading));
    text_ += "</tr>\n";
  }
  void add(const std::vector<std::string>& cells) {
    text_ += "<tr>";
    for (const std::string& cell : cells) text_ += fmt::format("<td>{}</td>", escaped(cell));
    text_ += "</tr>\n";
  }
  std::string text() const { return text_ + "</table></div>\n"; }

 private:
  std::string text_;
};

std::string source_section(const Comparison& comparison) {
  std::string text = paragraph(fmt::format("{} lines of code added, {} removed; comments and version numbers left out.",
                                           comparison.size.added, comparison.size.removed));
  text += "<pre tabindex=\"0\">";
  std::istringstream lines(comparison.diff);
  bool in_change = false;
  for (std::string line; std::getline(lines, line);) {
    const char* kind = line.starts_with('+')   ? "add"
                       : line.starts_with('-') ? "del"
                       : line.starts_with('@') ? "hunk"
                                               : "";
    const bool is_change =
        (line.starts_with('+') || line.starts_with('-')) && !line.starts_with("+++") && !line.starts_with("---");
    text += fmt::format("<span class=\"{}\"{}>{}</span>", kind, is_change && !in_change ? " data-difference" : "",
                        line.empty() ? " " : escaped(line));
    in_change = is_change;
  }
  return section("source", "Source", text + "</pre>\n");
}

// ---- TFLOP/s over seq_len ----

struct Curve {
  std::map<std::int64_t, double> points;  // TFLOP/s by seq_len
  bool stale = false;
};

// The curves of the plain problems of one device and type with as many queries as keys.
std::pair<Curve, Curve> curves(const std::vector<SpeedPair>& speeds, const std::string& folder, Dtype dtype) {
  std::pair<Curve, Curve> pair;
  for (const SpeedPair& speed : speeds) {
    const AttentionProblem& problem = speed.problem;
    if (speed.folder != folder || problem.dtype != dtype || problem.seq_len_kv != problem.seq_len || !is_plain(problem))
      continue;
    const auto add = [&](Curve& curve, const std::optional<RecordedSpeed>& measured) {
      if (!measured) return;
      curve.points[problem.seq_len] = measured->tflops;
      curve.stale = curve.stale || measured->stale;
    };
    add(pair.first, speed.from);
    add(pair.second, speed.to);
  }
  return pair;
}

// A tick interval of 1, 2 or 5 times a power of ten that divides `highest` into at most five parts.
double tick_step(double highest) {
  double step = std::pow(10, std::floor(std::log10(std::max(highest, 1e-9) / 5)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (highest / (step * factor) <= 5) return step * factor;
  return step * 10;
}

std::string chart(const Comparison& comparison, const Curve& from, const Curve& to) {
  std::int64_t first = 0, last = 0;
  double highest = 0;
  for (const Curve* curve : {&from, &to})
    for (const auto& [seq_len, tflops] : curve->points) {
      first = first == 0 ? seq_len : std::min(first, seq_len);
      last = std::max(last, seq_len);
      highest = std::max(highest, tflops);
    }
  constexpr double kLeft = 48, kRight = 462, kTop = 16, kBottom = 250;
  const double step = tick_step(highest), top = step * std::ceil(highest / step);
  const double range = last > first ? std::log2(static_cast<double>(last) / static_cast<double>(first)) : 1;
  const auto x = [&](std::int64_t seq_len) {
    return kLeft + 12 +
           (kRight - kLeft - 24) * std::log2(static_cast<double>(seq_len) / static_cast<double>(first)) / range;
  };
  const auto y = [&](double tflops) { return kBottom - (kBottom - kTop) * tflops / top; };
  const std::string name_from = label(comparison.from), name_to = label(comparison.to);
  std::string text = fmt::format(
      "<svg viewBox=\"0 0 480 310\" role=\"img\" aria-label=\"TFLOP/s over seq_len of {} and {}; the table below has the "
      "figures\">\n",
      escaped(name_from), escaped(name_to));
  for (double tick = 0; tick <= top + step / 2; tick += step)
    text += fmt::format(
        "<line class=\"axis\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text x=\"{:.0f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:g}</text>\n",
        kLeft, kRight, y(tick), y(tick), kLeft - 6, y(tick) + 5, tick);
  std::map<std::int64_t, bool> lengths;
  for (const Curve* curve : {&from, &to})
    for (const auto& [seq_len, tflops] : curve->points) lengths[seq_len] = true;
  for (const auto& [seq_len, there] : lengths)
    text += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", x(seq_len), kBottom + 20,
                        seq_len);
  const auto draw = [&](const Curve& curve, const char* kind) {
    std::string points;
    for (const auto& [seq_len, tflops] : curve.points) points += fmt::format("{:.1f},{:.1f} ", x(seq_len), y(tflops));
    text += fmt::format("<polyline class=\"{}\" stroke-width=\"2.5\" points=\"{}\"/>\n", kind, points);
    for (const auto& [seq_len, tflops] : curve.points)
      text +=
          fmt::format("<circle class=\"{}-dot\" r=\"4\" cx=\"{:.1f}\" cy=\"{:.1f}\"/>", kind, x(seq_len), y(tflops));
  };
  draw(from, "from");
  draw(to, "to");
  text += fmt::format(
      "\n<text class=\"from-text\" x=\"{0:.0f}\" y=\"298\">- - {1}</text><text class=\"to-text\" x=\"{2:.0f}\" y=\"298\" "
      "text-anchor=\"end\">— {3}</text>\n</svg>\n",
      kLeft, escaped(name_from), kRight, escaped(name_to));
  return text;
}

std::string speed_section(const Comparison& comparison) {
  std::string text;
  std::vector<std::string> folders;
  for (const SpeedPair& speed : comparison.speeds)
    if (std::find(folders.begin(), folders.end(), speed.folder) == folders.end()) folders.push_back(speed.folder);
  const StaticPair& shown = comparison.compiled;
  const MeasuredWays ways = ways_of(comparison.speeds);
  for (const std::string& folder : folders) {
    const auto [from, to] = curves(comparison.speeds, folder, Dtype::fp16);
    std::string device = folder;
    for (const SpeedPair& speed : comparison.speeds)
      if (speed.folder == folder && !speed.device.empty()) device = speed.device;
    if (!from.points.empty() || !to.points.empty())
      text +=
          fmt::format("<figure>\n{}<figcaption class=\"faint\">TFLOP/s over seq_len, fp16, {}</figcaption></figure>\n",
                      chart(comparison, from, to), escaped(device));
    HtmlTable table(fmt::format("TFLOP/s on {}; {}", device, ways.legend()),
                    {"problem", label(comparison.from), label(comparison.to), "change"});
    for (const SpeedPair& speed : comparison.speeds)
      if (speed.folder == folder)
        table.add({describe(speed.problem), speed_figure(speed.from, *shown.config_from, ways, "–"),
                   speed_figure(speed.to, *shown.config_to, ways, "–"),
                   speed.ratio() ? fmt::format("{:.2f}×", *speed.ratio()) : ""});
    text += table.text();
    if (from.stale || to.stale) text += paragraph("stale: the code has changed since; --record measures it again.");
  }
  return section("speed", "Speed", text.empty() ? paragraph("Nothing is recorded.") : text);
}

std::string busy_section(const Comparison& comparison) {
  std::string text;
  for (const BusyPair& pair : comparison.busy) {
    const BusyVersion& any = pair.any();
    HtmlTable table(fmt::format("{}, {}, by Nsight Compute on {}; percentages are of the cycles", any.device,
                                describe(any.problem), any.date.substr(0, 10)),
                    {"", label(comparison.from), label(comparison.to), "change"});
    const auto figure = [](const BusyMetric& metric, const std::optional<BusyVersion>& version) {
      return version ? format_metric(metric, version->busy) + (version->stale ? " stale" : "") : std::string("–");
    };
    for (const BusyMetric& metric : busy_metrics())
      table.add({metric.name, figure(metric, pair.from), figure(metric, pair.to),
                 pair.from && pair.to ? format_change(metric, pair.from->busy, pair.to->busy) : ""});
    text += table.text();
    if ((pair.from && pair.from->stale) || (pair.to && pair.to->stale))
      text += paragraph("stale: the code has changed since it was counted; scripts/ncu_counters.py counts it again.");
  }
  return section("busy", "Which unit is busy", text.empty() ? paragraph("Nothing was counted on a GPU.") : text);
}

std::string counters_section(const Comparison& comparison) {
  const CountedPair& counted = comparison.counted;
  if (!counted.why_not.empty())
    return section("counters", "Counters by line", paragraph("Not counted: " + counted.why_not));
  std::string text = paragraph(fmt::format(
      "Counted by the {}, {}. Lines that access no memory and have equal counts are left out. Shared and global "
      "memory: "
      "wavefronts and sectors, as multiples of the ideal.",
      *counted.to.device, describe(counted.to.problem)));
  text +=
      "<div class=\"scroll\" tabindex=\"0\"><table class=\"lines\">\n<tr><th scope=\"col\">line</th><th scope=\"col\">warp "
      "instructions</th><th scope=\"col\">shared</th><th scope=\"col\">global</th></tr>\n";
  for (const LineChange& change : counted.lines) {
    const LineCells figures = cells(change);
    text += fmt::format(
        "<tr><td><span class=\"place\">{}</span> <code>{}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        change.place, escaped(change.code), figures.instructions, figures.shared, figures.global);
  }
  text += "</table></div>\n";
  HtmlTable totals("Totals that differ", {"counter", label(comparison.from), label(comparison.to), "change"});
  for (const CounterChange& change : counter_changes(counted.from, counted.to))
    totals.add({change.counter, grouped(change.from), grouped(change.to),
                change.from == 0
                    ? ""
                    : fmt::format("{:.2f}×", static_cast<double>(change.to) / static_cast<double>(change.from))});
  return section("counters", "Counters by line", text + totals.text());
}

// ---- machine code ----

std::string sass_cell(const SassInstruction* instruction, SourceText& source) {
  if (!instruction) return "";
  const SourcePosition position = in_kernel_file(instruction->position);
  const std::string place = position.empty() ? "" : describe_position({position.front()});
  const std::string code = position.empty() ? "" : source.line(position.front());
  return fmt::format("{} <span class=\"place\" title=\"{}\">{}</span>", escaped(instruction->text), escaped(code),
                     escaped(place));
}

constexpr std::size_t kContext = 3;  // equal rows kept on either side of a difference

std::string sass_rows(const std::vector<AlignedInstructions>& rows, std::size_t first, std::size_t last,
                      SourceText& source) {
  std::string text;
  for (std::size_t i = first; i < last; ++i) {
    const AlignedInstructions& row = rows[i];
    const bool begins = !row.same_opcode() && (i == 0 || rows[i - 1].same_opcode());
    text += fmt::format("<tr{}><td{}>{}</td><td{}>{}</td></tr>\n", begins ? " data-difference" : "",
                        row.same_opcode() || !row.from ? "" : " class=\"only-from\"", sass_cell(row.from, source),
                        row.same_opcode() || !row.to ? "" : " class=\"only-to\"", sass_cell(row.to, source));
  }
  return text.empty() ? "" : "<table class=\"sass\">\n" + text + "</table>\n";
}

// Runs of equal rows are folded, except for the rows next to a difference.
std::string sass_part(const char* title, const std::vector<const SassInstruction*>& from,
                      const std::vector<const SassInstruction*>& to, bool open, const Comparison& comparison,
                      SourceText& source) {
  const auto rows = align_by_opcode(from, to);
  std::string text = fmt::format(
      "<details{}><summary>{}: {} instructions, and {}</summary>\n<table class=\"sass\">\n<tr><th scope=\"col\">{}</th><th "
      "scope=\"col\">{}</th></tr></table>\n",
      open ? " open" : "", title, from.size(), to.size(), escaped(label(comparison.from)),
      escaped(label(comparison.to)));
  std::size_t shown = 0;  // number of rows already written or folded
  for (std::size_t i = 0; i < rows.size();) {
    std::size_t end = i;
    while (end < rows.size() && rows[end].same_opcode()) ++end;
    const std::size_t first = i == 0 ? 0 : i + kContext,
                      last = end == rows.size() ? end : end - std::min(end, kContext);
    if (last > first + 1) {
      text += sass_rows(rows, shown, first, source);
      text += fmt::format("<details class=\"equal\"><summary>{} rows with equal opcodes</summary>\n{}</details>\n",
                          last - first, sass_rows(rows, first, last, source));
      shown = last;
    }
    i = std::max(end, i + 1);
  }
  return text + sass_rows(rows, shown, rows.size(), source) + "</details>\n";
}

std::string opcode_table(const char* caption, const OpcodeCounts& from, const OpcodeCounts& to,
                         const Comparison& comparison) {
  HtmlTable table(caption, {"opcode", label(comparison.from), label(comparison.to), "change"});
  const auto add = [&](const std::string& name, int a, int b) {
    table.add({name, std::to_string(a), std::to_string(b), a == b ? "" : fmt::format("{:+}", b - a)});
  };
  int unchanged = 0, sum = 0;
  for (const OpcodeChange& change : changes(from, to)) {
    if (change.change() != 0) {
      add(change.opcode, change.before, change.after);
    } else {
      ++unchanged;
      sum += change.after;
    }
  }
  if (unchanged > 0) add(fmt::format("{} unchanged opcode{}", unchanged, unchanged == 1 ? "" : "s"), sum, sum);
  add("total", total(from), total(to));
  return table.text();
}

std::string code_section(const Comparison& comparison, const Options& options) {
  const StaticPair& compiled = comparison.compiled;
  std::string text;
  if (compiled.from && compiled.to) {
    const StaticStudy &a = *compiled.from, &b = *compiled.to;
    HtmlTable table(fmt::format("What a CTA needs on sm_{}", compiled.sm),
                    {"", label(comparison.from), label(comparison.to), "change"});
    table.add({"configuration", compiled.config_from->name, compiled.config_to->name, ""});
    const auto add = [&](const std::string& name, int from, int to) {
      table.add({name, std::to_string(from), std::to_string(to), from == to ? "" : fmt::format("{:+}", to - from)});
    };
    add("registers per thread", a.registers, b.registers);
    add("spilled bytes per thread", a.spill_bytes, b.spill_bytes);
    add("shared memory per CTA, bytes", a.smem_bytes, b.smem_bytes);
    add("CTAs per SM", a.ctas_per_sm, b.ctas_per_sm);
    table.add({"limited by", a.limited_by, b.limited_by, ""});
    text += table.text();
  } else {
    text += paragraph(fmt::format("The build has no study of both for sm_{}.", compiled.sm));
  }
  if (compiled.code_from && compiled.code_to)
    text += opcode_table("Opcodes in the hot loop, per iteration", compiled.code_from->hot_loop_sass,
                         compiled.code_to->hot_loop_sass, comparison);
  text += paragraph(
      "Below, instructions with the same opcode are side by side; coloured cells have no counterpart. Long runs of equal rows "
      "are folded: n and p jump to the next and the previous difference. The small number is the line of the version's file; "
      "point at it to read the line.");
  try {
    const auto code_of = [&](const Version& version, const Configuration& configuration) {
      return sass_text(version, configuration, code_name(version, compiled.sm), options.paths.study,
                       FLASH_LADDER_SOURCE_DIR);
    };
    const auto from = code_of(comparison.from, *compiled.config_from), to = code_of(comparison.to, *compiled.config_to);
    const KernelParts a = parts_of(from), b = parts_of(to);
    SourceText source(options.paths.source);
    text += sass_part("Before the hot loop", a.before, b.before, false, comparison, source);
    text += sass_part("The hot loop", a.hot_loop, b.hot_loop, true, comparison, source);
    text += sass_part("After the hot loop", a.after, b.after, false, comparison, source);
  } catch (const UnavailableError& error) {
    text += paragraph(fmt::format("There is no machine code to show: {}", error.what()));
  }
  return section("sass", "Machine code", text);
}

}  // namespace

std::string comparison_page(const Comparison& comparison, const Options& options) {
  const std::string title = fmt::format("{} → {}", label(comparison.from), label(comparison.to));
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n"
      "<h1>{0}</h1>\n<nav aria-label=\"Sections\">",
      escaped(title), kStyle);
  for (const auto& [id, name] : {std::pair("speed", "speed"),
                                 {"busy", "busy units"},
                                 {"source", "source"},
                                 {"counters", "counters"},
                                 {"sass", "machine code"}})
    text += fmt::format("<a href=\"#{}\">{}</a>", id, name);
  text +=
      "<span><button type=\"button\" data-step=\"-1\">previous difference (p)</button> <button type=\"button\" "
      "data-step=\"1\">next difference (n)</button></span></nav>\n<dl>\n";
  const Verdict verdict = verdict_of(comparison);
  for (const auto& [name, value] :
       {std::pair("Speed", &verdict.speed), {"Fell", &verdict.fell}, {"Rose", &verdict.rose}})
    text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escaped(*value));
  const HeaderComment& header = comparison.header;
  for (const auto& [name, value] :
       {std::pair("Idea", &header.idea), {"Changed", &header.changed}, {"Prediction", &header.prediction}})
    if (!value->empty()) text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escaped(*value));
  text += "</dl>\n";
  text += speed_section(comparison) + busy_section(comparison) + source_section(comparison) +
          counters_section(comparison) + code_section(comparison, options);
  return text + fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", kScript);
}

}  // namespace flash_ladder
