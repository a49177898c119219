#include "sim/core/csv_reader.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "sim/core/config.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

bool same_name(std::string_view a, std::string_view b) {
  const auto small = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::ranges::equal(a, b, {}, small, small);
}

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& path) : lines_(path) {
  std::string_view line;
  if (!lines_.next(line)) {
    throw ConfigError(fmt::format("{}: the file is empty", path.string()));
  }
  split(line);
  names_.assign(fields_.begin(), fields_.begin() + static_cast<std::ptrdiff_t>(field_count_));
}

std::optional<std::size_t> CsvReader::column(std::string_view name) const {
  const auto is_it = [&](const std::string& other) { return same_name(name, other); };
  const auto found = std::find_if(names_.begin(), names_.end(), is_it);
  if (found == names_.end()) {
    return std::nullopt;
  }
  const auto times = std::count_if(names_.begin(), names_.end(), is_it);
  if (times > 1) {
    throw lines_.error(fmt::format("column {} comes {} times", name, times));
  }
  return static_cast<std::size_t>(found - names_.begin());
}

std::vector<std::size_t> CsvReader::columns(std::span<const std::string_view> names) const {
  std::vector<std::size_t> places;
  std::vector<std::string> missing;
  for (const std::string_view name : names) {
    if (const auto place = column(name)) {
      places.push_back(*place);
    } else {
      missing.emplace_back(name);
    }
  }
  if (!missing.empty()) {
    throw lines_.error(fmt::format("missing column{} {} (found {})", missing.size() > 1 ? "s" : "",
                                   detail::join(missing, ", "), detail::join(names_, ", ")));
  }
  return places;
}

bool CsvReader::next() {
  std::string_view line;
  do {
    if (!lines_.next(line)) {
      return false;
    }
  } while (line.empty());
  split(line);
  if (field_count_ != names_.size()) {
    throw lines_.error(
        fmt::format("expected {} fields as in line 1, got {}", names_.size(), field_count_));
  }
  return true;
}

std::int64_t CsvReader::whole_number(std::size_t column, std::int64_t maximum) const {
  const std::string& text = fields_[column];
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > maximum) {
    throw unexpected(column, fmt::format("a whole number in 0 .. {}", maximum));
  }
  return value;
}

ConfigError CsvReader::unexpected(std::size_t column, std::string_view expected) const {
  return lines_.error(fmt::format("{}: expected {}, got {}", names_[column], expected,
                                  quote_text(fields_[column])));
}

void CsvReader::split(std::string_view line) {
  field_count_ = 0;
  std::size_t at = 0;
  while (true) {
    if (field_count_ == fields_.size()) {
      fields_.emplace_back();
    }
    std::string& field = fields_[field_count_++];
    field.clear();
    if (at < line.size() && line[at] == '"') {
      ++at;
      while (true) {
        const std::size_t quote = line.find('"', at);
        if (quote == line.npos) {
          throw lines_.error("a quoted field does not end on its line");
        }
        field += line.substr(at, quote - at);
        at = quote + 1;
        if (at >= line.size() || line[at] != '"') {
          break;
        }
        field += '"';
        ++at;
      }
      if (at < line.size() && line[at] != ',') {
        throw lines_.error("expected ',' after a quoted field");
      }
    } else {
      const std::size_t comma = std::min(line.find(',', at), line.size());
      field += line.substr(at, comma - at);
      at = comma;
    }
    if (at >= line.size()) {
      return;
    }
    ++at;  // the comma
  }
}

}  // namespace kvtier
