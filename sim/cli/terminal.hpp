#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace kvtier::cli {

/// The user pressed Ctrl-C, or the process got SIGTERM. Progress callbacks throw it, so that
/// unfinished files are removed. The exit code is 130.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : Interrupted("nothing was written") {}
  explicit Interrupted(const std::string& outcome)
      : std::runtime_error("interrupted; " + outcome) {}
};

/// Makes the first Ctrl-C or SIGTERM a flag for `check_interrupt`. A second one ends the program at
/// once.
void watch_interrupts();
/// Throws Interrupted after a Ctrl-C or SIGTERM.
void check_interrupt();

/// Opens descriptors 0, 1 and 2 if they are closed, so that no file gets their numbers; each use of
/// them fails. A write to a pipe without a reader, or beyond the largest file size, becomes an
/// error instead of a signal.
void prepare_standard_streams();

/// Writes to standard output, over the progress line. Throws DeviceError.
void print_text(std::string_view text);
template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  print_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Erases the progress line if one is shown.
void clear_progress();

/// Writes a line to standard error, over the progress line. Write errors are ignored.
void note(std::string_view line);
/// Writes `kvtier: MESSAGE` as `note` does.
void tell(std::string_view message);

/// A bar of `width` characters, filled to `share` of it: "[#####-----]".
[[nodiscard]] std::string progress_bar(double share, int width);
/// "about 2 min 5 s left".
[[nodiscard]] std::string time_left(double seconds);

/// A line on standard error that each `show` overwrites. It shows nothing if standard error is no
/// terminal. Only one may exist at a time.
class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();

  void show(const std::string& text);

 private:
  bool terminal_;
};

/// A callback (done, all) that shows a bar of runs with the time left, and throws Interrupted.
[[nodiscard]] std::function<void(std::int64_t, std::int64_t)> run_progress(ProgressLine& line);

/// A callback for RunOptions::progress that shows turns done and turns/s, and throws Interrupted.
[[nodiscard]] std::function<void(std::int64_t)> turn_progress(ProgressLine& line);

/// Seconds since the program started.
[[nodiscard]] double elapsed_seconds();

}  // namespace kvtier::cli
