/// Preloaded into kvtier (LD_PRELOAD) by faults.py: makes one system call fail, or all from it on.
///
/// KVTIER_FAULT is `CALL:N:HOW:FOLDER`: the Nth `CALL` (write, fsync, rename, open, close, read) on
/// a file in FOLDER returns HOW: an error number, once, or with `+` behind it from then on; or
/// `short`, for a write of half the bytes. The file of the fault is written to KVTIER_FAULT_MARK.

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

struct Fault {
  std::string call;
  long at = 0;
  int error = 0;
  bool is_short = false;
  bool stays = false;
  std::string folder;
};

const Fault& fault() {
  static const Fault found = [] {
    Fault f;
    const char* const text = std::getenv("KVTIER_FAULT");
    if (text == nullptr) {
      return f;
    }
    const std::string all = text;
    const std::size_t first = all.find(':');
    const std::size_t second = all.find(':', first + 1);
    const std::size_t third = all.find(':', second + 1);
    f.call = all.substr(0, first);
    f.at = std::atol(all.c_str() + first + 1);
    const std::string how = all.substr(second + 1, third - second - 1);
    f.is_short = how == "short";
    f.stays = how.back() == '+';
    f.error = std::atoi(how.c_str());
    f.folder = all.substr(third + 1);
    return f;
  }();
  return found;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int descriptor) {
  char link[64];
  char path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = ::readlink(link, path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : std::string();
}

std::string absolute(const char* path) {
  char here[4096];
  return path[0] == '/' || ::getcwd(here, sizeof here) == nullptr ? std::string(path)
                                                                  : std::string(here) + "/" + path;
}

/// Whether this call is to fail; notes the file of the first that does.
bool fails(const char* call, const std::string& path) {
  static std::atomic<long> count = 0;
  if (fault().call != call || path.rfind(fault().folder, 0) != 0) {
    return false;
  }
  const long now = ++count;
  if (now != fault().at && !(fault().stays && now > fault().at)) {
    return false;
  }
  const char* const mark = std::getenv("KVTIER_FAULT_MARK");
  if (now == fault().at && mark != nullptr) {
    // Not by the calls below.
    const long file = ::syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::syscall(SYS_write, file, path.data(), path.size());
    ::syscall(SYS_close, file);
  }
  errno = fault().error;
  return true;
}

int open_or_fail(const char* name, const char* path, int flags, va_list more) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = has_mode ? va_arg(more, mode_t) : 0;
  return fails("open", absolute(path)) ? -1
                                       : next<int(const char*, int, ...)>(name)(path, flags, mode);
}

FILE* fopen_or_fail(const char* name, const char* path, const char* mode) {
  return fails("open", absolute(path)) ? nullptr
                                       : next<FILE*(const char*, const char*)>(name)(path, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int result = open_or_fail("open", path, flags, more);
  va_end(more);
  return result;
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int result = open_or_fail("open64", path, flags, more);
  va_end(more);
  return result;
}

FILE* fopen(const char* path, const char* mode) { return fopen_or_fail("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return fopen_or_fail("fopen64", path, mode); }

ssize_t write(int descriptor, const void* data, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (fails("write", path_of(descriptor))) {
    return fault().is_short && size > 1 ? real(descriptor, data, size / 2) : -1;
  }
  return real(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (fails("write", path_of(descriptor))) {
    return fault().is_short && size > 1 ? real(descriptor, data, size / 2, at) : -1;
  }
  return real(descriptor, data, size, at);
}

size_t fread(void* data, size_t size, size_t count, FILE* file) {
  static auto* const real = next<size_t(void*, size_t, size_t, FILE*)>("fread");
  if (fails("read", path_of(::fileno(file)))) {
    file->_flags |= 0x20;  // _IO_ERR_SEEN: as ferror() sees it
    return 0;
  }
  return real(data, size, count, file);
}

int fsync(int descriptor) {
  static auto* const real = next<int(int)>("fsync");
  return fails("fsync", path_of(descriptor)) ? -1 : real(descriptor);
}

int rename(const char* from, const char* to) {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return fails("rename", absolute(to)) ? -1 : real(from, to);
}

int close(int descriptor) {
  static auto* const real = next<int(int)>("close");
  const bool failed = fails("close", path_of(descriptor));
  const int error = errno;
  const int result = real(descriptor);
  if (failed) {
    errno = error;
    return -1;
  }
  return result;
}

}  // extern "C"
