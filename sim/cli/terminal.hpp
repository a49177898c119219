#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace kvtier::cli {

/// Ctrl-C (or SIGTERM) while work was going on. Thrown out of progress calls, so that every file in
/// the making is removed on the way out; exit code 130.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : Interrupted("nothing was written") {}
  explicit Interrupted(const std::string& outcome)
      : std::runtime_error("interrupted; " + outcome) {}
};

/// From now on the first Ctrl-C is noticed by `check_interrupt`; a second one ends the program at
/// once.
void watch_interrupts();
/// Throws Interrupted if there was one.
void check_interrupt();

/// A bar of `width` characters, filled to `share` of it: "[#####-----]".
[[nodiscard]] std::string progress_bar(double share, int width);

/// One line on a terminal's stderr that is written over; nothing where stderr is no terminal.
class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();

  void show(const std::string& text);

 private:
  bool terminal_;
  bool shown_ = false;
};

/// A callback for RunOptions::progress: shows turns done and their rate, and throws Interrupted.
[[nodiscard]] std::function<void(std::int64_t)> turn_progress(ProgressLine& line);

/// Seconds since the program started, for speed messages on stderr.
[[nodiscard]] double elapsed_seconds();

}  // namespace kvtier::cli
