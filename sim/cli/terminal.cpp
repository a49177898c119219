#include "sim/cli/terminal.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

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

std::string progress_bar(double share, int width) {
  const int filled = std::clamp(static_cast<int>(share * width), 0, width);
  return fmt::format("[{}{}]", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(width - filled), '-'));
}

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (shown_) {
    std::fputs("\r\033[K", stderr);
  }
}

void ProgressLine::show(const std::string& text) {
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", text);
    std::fflush(stderr);
    shown_ = true;
  }
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
