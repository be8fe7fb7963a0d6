#include "app/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

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

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The first `columns` characters, none cut in the middle.
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

Progress::Progress() : enabled_(isatty(STDERR_FILENO)) {}

void Progress::show(const std::string& text) {
  if (!enabled_) return;
  fmt::print(stderr, "\r{}\x1b[K", first_columns(text, terminal_columns() - 1));  // a longer line would wrap, and stay
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  bool in_escape = false;  // from ESC to m: a change of colour
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
