// What the reader sees: colour on a terminal only, and a line of progress for long work.
#pragma once

#include <fmt/color.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace flash_ladder {

/// Text for standard output: coloured when that is a terminal and NO_COLOR (https://no-color.org) is not set.
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

/// To standard error. That nobody can read it is no error: there is nowhere to say so.
void write_error(std::string_view text);

/// One line on standard error that says what is being done; nothing at all when that is no terminal.
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

/// Columns that a text takes: its UTF-8 characters, without what changes the colour.
std::size_t display_width(std::string_view text);
/// The text with blanks after it, up to `width` columns.
std::string pad(std::string_view text, std::size_t width);

/// At most `width` columns of the text, with … where something is missing.
std::string shortened(std::string_view text, std::size_t width);

/// Columns of the terminal that standard output is; more than any line has where it is none.
std::size_t output_width();
/// The same of standard error.
std::size_t error_width();

/// How wide running text is to be: as the terminal, but not so wide that lines are hard to find back to.
std::size_t text_width();

/// `label` in the first columns, then the text, broken at blanks into lines of at most `width` columns that all start below
/// its first word. Ends with a newline.
std::string labelled(std::string_view label, std::string_view text, std::size_t width = text_width());

/// The text with each line that is longer than `width` columns broken at blanks; what follows a break is indented.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent);

}  // namespace flash_ladder
