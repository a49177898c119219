#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace kvtier::cli {

/// Ctrl-C (or SIGTERM) during work. Thrown by progress calls, so that unfinished files are removed;
/// exit code 130.
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

/// Opens descriptors 0, 1 and 2 if they are closed, so that no file gets their numbers. A
/// descriptor that was closed fails at each use. Writing to a pipe without a reader, or beyond the
/// largest size of files, becomes an error instead of a signal.
void prepare_standard_streams();

/// Writes to standard output, over the progress line. Throws DeviceError.
void print_text(std::string_view text);
template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  print_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Erases the progress line, if there is one.
void clear_progress();

/// A line on standard error, over the progress line. It is lost if it cannot be written.
void note(std::string_view line);
/// The same for messages: `kvtier: MESSAGE`.
void tell(std::string_view message);

/// A bar of `width` characters, filled to `share` of it: "[#####-----]".
[[nodiscard]] std::string progress_bar(double share, int width);
/// "about 2 min 5 s left".
[[nodiscard]] std::string time_left(double seconds);

/// One line on a terminal's stderr that is overwritten; nothing if stderr is no terminal. There is
/// one at a time.
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

/// A callback for RunOptions::progress: shows turns done and their rate, and throws Interrupted.
[[nodiscard]] std::function<void(std::int64_t)> turn_progress(ProgressLine& line);

/// Seconds since the program started, for speed messages on stderr.
[[nodiscard]] double elapsed_seconds();

}  // namespace kvtier::cli
