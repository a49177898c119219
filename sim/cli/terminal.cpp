#include "sim/cli/terminal.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "sim/core/file.hpp"
#include "sim/core/text.hpp"

namespace kvtier::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void note_interrupt(int signal) {
  if (interrupted != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  interrupted = 1;
}

/// Moves to the start of the line and erases it.
constexpr const char* kErase = "\r\033[K";
/// Whether a progress line is on the terminal.
bool line_shown = false;

const auto program_start = std::chrono::steady_clock::now();

}  // namespace

void watch_interrupts() {
  std::signal(SIGINT, note_interrupt);
  std::signal(SIGTERM, note_interrupt);
}

void check_interrupt() {
  if (interrupted != 0) {
    throw Interrupted();
  }
}

void prepare_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) {
      // open() takes the lowest free number. The wrong access mode makes reads or writes fail.
      static_cast<void>(::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void clear_progress() {
  if (line_shown) {
    line_shown = false;
    static_cast<void>(std::fputs(kErase, stderr));
  }
}

void print_text(std::string_view text) {
  clear_progress();
  write_standard_output(printable(text));
}

void note(std::string_view line) {
  clear_progress();
  const std::string text = printable_line(line) + "\n";
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

void tell(std::string_view message) {
  constexpr std::size_t kMessageBytesMax = 8192;  // the longest lists of known names are shorter
  note(fmt::format("kvtier: {}", shortened(message, kMessageBytesMax)));
}

std::string progress_bar(double share, int width) {
  const int filled = std::clamp(static_cast<int>(share * width), 0, width);
  return fmt::format("[{}{}]", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(width - filled), '-'));
}

std::string time_left(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  constexpr std::int64_t kMinute = 60;
  return whole >= kMinute ? fmt::format("about {} min {} s left", whole / kMinute, whole % kMinute)
                          : fmt::format("about {} s left", whole);
}

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() { clear_progress(); }

void ProgressLine::show(const std::string& text) {
  if (!terminal_) {
    return;
  }
  // A wrapped line cannot be overwritten.
  winsize size{};
  std::string line = printable_line(text);
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
      line.size() >= size.ws_col) {
    line = printable_line(std::string_view(line).substr(0, size.ws_col - 1));
  }
  line = kErase + line;
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  line_shown = true;
}

std::function<void(std::int64_t, std::int64_t)> run_progress(ProgressLine& line) {
  struct Begin {
    std::int64_t done;
    double at;
  };
  return [&line, begin = std::optional<Begin>()](std::int64_t done, std::int64_t all) mutable {
    check_interrupt();
    const double now = elapsed_seconds();
    if (!begin) {
      begin = {done, now};  // a resumed sweep starts with finished runs
    }
    std::string left;
    if (done > begin->done && done < all) {
      left = ", " + time_left((now - begin->at) * static_cast<double>(all - done) /
                              static_cast<double>(done - begin->done));
    }
    constexpr int kWidth = 20;
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max(all, std::int64_t{1}));
    line.show(fmt::format("{} {} of {} runs, {:.1f} s{}", progress_bar(share, kWidth), done, all,
                          now, left));
  };
}

std::function<void(std::int64_t)> turn_progress(ProgressLine& line) {
  return [&line, shown_at = 0.0](std::int64_t turns) mutable {
    check_interrupt();
    const double now = elapsed_seconds();
    constexpr double kShowEvery = 0.2;
    if (now - shown_at >= kShowEvery) {
      shown_at = now;
      line.show(fmt::format("{} turns, {:.0f} turns/s", turns, static_cast<double>(turns) / now));
    }
  };
}

double elapsed_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - program_start).count();
}

}  // namespace kvtier::cli
