#include "app/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace flash_ladder {
namespace {

constexpr std::size_t kLabelWidth = 12;

bool no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value && *value;
}

constexpr std::size_t kUnlimited = 100'000, kWidestText = 110;

std::size_t terminal_columns(int file) {
  winsize size{};
  if (!isatty(file)) return kUnlimited;
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The first `columns` characters, without cutting a character in the middle.
std::string_view first_columns(std::string_view text, std::size_t columns) {
  std::size_t end = 0;
  for (; end < text.size(); ++end)
    if ((text[end] & 0xC0) != 0x80 && columns-- == 0) break;
  return text.substr(0, end);
}

}  // namespace

Paint::Paint() : enabled_(isatty(STDOUT_FILENO) && !no_color()) {}

std::string Paint::apply(const fmt::text_style& style, std::string_view text) const {
  return enabled_ ? fmt::format(style, "{}", text) : std::string(text);
}

// fmt::print would throw, mostly while an error is already being reported.
void write_error(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stderr) == text.size()) std::fflush(stderr);
}

Progress::Progress() : enabled_(isatty(STDERR_FILENO)) {}

void Progress::show(const std::string& text) {
  if (!enabled_) return;
  const std::string_view line =
      first_columns(text, terminal_columns(STDERR_FILENO) - 1);  // a longer line would wrap, and could not be erased
  write_error(fmt::format("\r{}\x1b[K", line));
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  write_error("\r\x1b[K");
  shown_ = false;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  bool in_escape = false;  // from ESC to m: a colour code
  for (const char c : text) {
    if (c == '\x1b') in_escape = true;
    if (!in_escape && (c & 0xC0) != 0x80) ++width;
    if (c == 'm') in_escape = false;
  }
  return width;
}

std::string pad(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(text) + std::string(used < width ? width - used : 0, ' ');
}

std::string shortened(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  return std::string(first_columns(text, width > 0 ? width - 1 : 0)) + "…";
}

std::size_t output_width() { return terminal_columns(STDOUT_FILENO); }
std::size_t error_width() { return terminal_columns(STDERR_FILENO); }
std::size_t text_width() { return std::min(output_width(), kWidestText); }

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string lines;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = text.substr(start, end - start);
    std::string before;  // the blanks before the rest of the line
    while (before.size() + display_width(line) > width) {
      // The last blank at which the rest of the line fits; the blanks at the start of the line do not count.
      const std::size_t room = width > before.size() ? width - before.size() : 0;
      const std::string_view head = first_columns(line, room + 1);
      const std::size_t first_word = line.find_first_not_of(' ');
      std::size_t blank = head.size() == line.size() ? std::string_view::npos : head.rfind(' ');
      if (blank == std::string_view::npos || blank < first_word) blank = line.find(' ', first_word);
      if (blank == std::string_view::npos) break;  // one long word
      std::string_view part = line.substr(0, blank);
      lines += before + std::string(part.substr(0, part.find_last_not_of(' ') + 1)) + '\n';
      line = line.substr(std::min(line.find_first_not_of(' ', blank), line.size()));
      before = std::string(indent, ' ');
    }
    lines += before + std::string(line);
    if (end < text.size()) lines += '\n';
    start = end + 1;
  }
  return lines;
}

std::string labelled(std::string_view label, std::string_view text, std::size_t width) {
  std::string lines = pad(label, kLabelWidth);
  std::size_t column = kLabelWidth;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const std::size_t word_width = display_width(word);
    if (column > kLabelWidth && column + 1 + word_width > width) {
      lines += '\n' + std::string(kLabelWidth, ' ');
      column = kLabelWidth;
    }
    if (column > kLabelWidth) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word_width;
  }
  return lines + '\n';
}

}  // namespace flash_ladder
