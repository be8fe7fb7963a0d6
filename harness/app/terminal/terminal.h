// Output for a reader: colours, if it goes to a terminal, and a progress line for long work.
#pragma once

#include <fmt/color.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace flash_ladder {

/// Text for standard output: coloured if that is a terminal and NO_COLOR (https://no-color.org) is not set.
class Paint {
 public:
  Paint();
  std::string bold(std::string_view text) const { return apply(fmt::emphasis::bold, text); }
  std::string dim(std::string_view text) const { return apply(fmt::emphasis::faint, text); }
  std::string good(std::string_view text) const { return apply(fmt::fg(fmt::terminal_color::green), text); }
  std::string bad(std::string_view text) const {
    return apply(fmt::fg(fmt::terminal_color::red) | fmt::emphasis::bold, text);
  }
  std::string notable(std::string_view text) const { return apply(fmt::fg(fmt::terminal_color::yellow), text); }

 private:
  std::string apply(const fmt::text_style& style, std::string_view text) const;
  bool enabled_;
};

/// Writes to standard error. A failure is ignored, because there is nowhere to report it.
void write_error(std::string_view text);

/// One line on standard error that says what is being done; silent if standard error is not a terminal.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& text);
  void clear();

 private:
  bool enabled_;
  bool shown_ = false;
};

/// The columns that a text occupies: its UTF-8 characters, without colour codes.
std::size_t display_width(std::string_view text);
/// The text padded with blanks to `width` columns.
std::string pad(std::string_view text, std::size_t width);

/// At most `width` columns of the text, with … in place of what was cut.
std::string shortened(std::string_view text, std::size_t width);

/// The width of the terminal if standard output is one; otherwise more than any line needs.
std::size_t output_width();
/// The same for standard error.
std::size_t error_width();

/// The width for running text: that of the terminal, but not so wide that the eye loses the start of the next line.
std::size_t text_width();

/// `label` in the first columns, then the text, broken at blanks into lines of at most `width` columns that are all
/// aligned with its first word. Ends with a newline.
std::string labelled(std::string_view label, std::string_view text, std::size_t width = text_width());

/// The text with each line that is longer than `width` columns broken at blanks; continuation lines are indented.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent);

}  // namespace flash_ladder
