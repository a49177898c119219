#include "traces/columns.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "sim/core/config.hpp"
#include "sim/core/csv_reader.hpp"
#include "sim/core/text.hpp"
#include "traces/hash_names.hpp"
#include "traces/line_scanner.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {
namespace {

constexpr std::array<std::string_view, 4> kUnits{"s", "ms", "us", "ns"};
constexpr const char* kBlock = "block";

std::vector<std::string> keys() {
  std::vector<std::string> all(TraceColumns::kMeanings.begin(), TraceColumns::kMeanings.end());
  all.emplace_back(kBlock);
  return all;
}

/// Reads a time in units of 10^-places seconds.
std::optional<Timestamp> parse_time(std::string_view text, std::size_t places) {
  const auto ns = parse_decimal_ns(text, places);
  return ns ? std::optional(Timestamp{TimestampForm::seconds, *ns}) : std::nullopt;
}

/// Removes a `:unit` from the name of the time's column, and stores the unit.
void take_unit(std::string& name, TraceColumns& columns, std::vector<std::string>& problems) {
  const std::size_t colon = name.rfind(':');
  if (colon == name.npos) {
    return;
  }
  const std::string unit = name.substr(colon + 1);
  const auto found = std::find(kUnits.begin(), kUnits.end(), unit);
  if (found == kUnits.end()) {
    problems.push_back(
        fmt::format("time: expected a unit s, ms, us or ns, got {}", quote_text(unit)));
    return;
  }
  constexpr std::size_t kPlacesEach = 3;
  columns.time_places = kPlacesEach * static_cast<std::size_t>(found - kUnits.begin());
  name.resize(colon);
}

/// Removes a `:total` or `:new` from the name of the input's column, and stores the meaning.
void take_meaning(std::string& name, TraceColumns& columns) {
  for (const auto& [word, meaning] : enum_names(InputTokens{})) {
    if (meaning != InputTokens::automatic && name.ends_with(fmt::format(":{}", word))) {
      columns.input_tokens = meaning;
      name.resize(name.size() - word.size() - 1);
      return;
    }
  }
}

void check(const TraceColumns& columns, std::vector<std::string>& problems) {
  using Meaning = TraceColumns::Meaning;
  for (const Meaning needed : {Meaning::time, Meaning::input, Meaning::output}) {
    if (!columns.has(needed)) {
      problems.push_back(fmt::format("expected {}=COLUMN", TraceColumns::kMeanings[needed]));
    }
  }
  if (columns.has(Meaning::hashes) != columns.block.has_value()) {
    problems.emplace_back(columns.block ? "block: the tokens of a block need hashes=COLUMN"
                                        : "hashes: expected block=TOKENS beside it");
  }
  if (columns.has(Meaning::hashes) && columns.input_tokens == InputTokens::new_tokens) {
    problems.emplace_back(
        "input: hashes name the blocks of whole prompts, expected total, got new");
  }
  for (std::size_t i = 0; i < columns.names.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (!columns.names[i].empty() && columns.names[i] == columns.names[k]) {
        problems.push_back(fmt::format("column {} is named twice, as {} and as {}",
                                       columns.names[i], TraceColumns::kMeanings[k],
                                       TraceColumns::kMeanings[i]));
      }
    }
  }
}

}  // namespace

void expect_column_names(const CsvReader& rows) {
  if (rows.names().size() == 1 && rows.names().front().empty()) {
    throw rows.error("the first line is empty, expected the names of the columns");
  }
}

std::optional<TraceColumns> parse_columns(std::string_view text, const std::string& option,
                                          std::vector<std::string>& problems) {
  TraceColumns columns{.option = option};
  const std::size_t before = problems.size();
  std::vector<std::string> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string key(part.substr(0, equals));
    std::string value(part.substr(std::min(equals + 1, part.size())));
    const auto meaning =
        std::find(TraceColumns::kMeanings.begin(), TraceColumns::kMeanings.end(), key);
    if (value.empty()) {
      problems.push_back(fmt::format("expected KEY=COLUMN, got {}", quote_text(part)));
    } else if (meaning == TraceColumns::kMeanings.end() && key != kBlock) {
      problems.push_back(fmt::format("unknown key {}, expected one of {}{}", quote_text(key),
                                     detail::join(keys(), ", "), suggestion(key, keys())));
    } else if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      problems.push_back(fmt::format("{} comes twice", key));
    } else if (key == kBlock) {
      std::int64_t tokens = 0;
      const char* const last = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), last, tokens);
      if (error != std::errc() || stop != last || tokens < 1 || tokens > kMessageTokensMax) {
        problems.push_back(fmt::format("block: expected a whole number in 1 .. {}, got {}",
                                       kMessageTokensMax, quote_text(value)));
      }
      columns.block = Tokens(std::max<std::int64_t>(tokens, 1));
    } else {
      const auto place = static_cast<std::size_t>(meaning - TraceColumns::kMeanings.begin());
      if (place == TraceColumns::time) {
        take_unit(value, columns, problems);
      } else if (place == TraceColumns::input) {
        take_meaning(value, columns);
      }
      columns.names[place] = std::move(value);
    }
    seen.push_back(key);
  }
  if (problems.size() == before) {
    check(columns, problems);
  }
  return problems.size() == before ? std::optional(std::move(columns)) : std::nullopt;
}

namespace {

using Columns = std::array<bool, TraceColumns::kMeanings.size()>;

/// The message about named columns that are missing; empty if there are none.
std::string missing_columns(const TraceColumns& columns, const Columns& there,
                            const std::vector<std::string>& found) {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (!columns.names[i].empty() && !there[i]) {
      missing.push_back(fmt::format("{} ({})", columns.names[i], TraceColumns::kMeanings[i]));
    }
  }
  return missing.empty() ? ""
                         : fmt::format("{}: missing column{} {} (found {})", columns.option,
                                       missing.size() > 1 ? "s" : "", detail::join(missing, ", "),
                                       found.empty() ? "none" : detail::join(found, ", "));
}

}  // namespace

/// A table whose rows are read as texts.
class ColumnRows::Table {
 public:
  explicit Table(HashNames* hashes) : hashes_(hashes) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  virtual ~Table() = default;

  /// Reads the next row, and the numbers of its hashes.
  virtual bool next(std::vector<std::int64_t>& numbers) = 0;
  /// The cell of a column in the current row. Valid until the next row.
  [[nodiscard]] virtual std::string_view text(TraceColumns::Meaning column) const = 0;
  [[nodiscard]] virtual const std::filesystem::path& path() const = 0;
  [[nodiscard]] virtual std::int64_t line_number() const = 0;
  [[nodiscard]] virtual ConfigError error(std::string_view message) const = 0;

 protected:
  HashNames* const hashes_;
};

class ColumnRows::Csv final : public Table {
 public:
  Csv(const std::filesystem::path& path, const TraceColumns& columns, HashNames* hashes)
      : Table(hashes), rows_(path), names_(columns.names) {
    expect_column_names(rows_);
    Columns there{};
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (const auto place = names_[i].empty() ? std::nullopt : rows_.column(names_[i])) {
        there[i] = true;
        places_[i] = *place;
      }
    }
    const std::string problem =
        missing_columns(columns, there, {rows_.names().begin(), rows_.names().end()});
    if (!problem.empty()) {
      throw rows_.error(problem);
    }
  }

  bool next(std::vector<std::int64_t>& numbers) override {
    if (!rows_.next()) {
      return false;
    }
    if (hashes_ != nullptr) {
      read_hashes(text(TraceColumns::hashes), numbers);
    }
    return true;
  }
  [[nodiscard]] std::string_view text(TraceColumns::Meaning column) const override {
    return rows_.text(places_[column]);
  }
  [[nodiscard]] const std::filesystem::path& path() const override { return rows_.path(); }
  [[nodiscard]] std::int64_t line_number() const override { return rows_.line_number(); }
  [[nodiscard]] ConfigError error(std::string_view message) const override {
    return rows_.error(message);
  }

 private:
  void read_hashes(std::string_view list, std::vector<std::int64_t>& numbers) {
    constexpr std::string_view kBetween = " \t,;";
    numbers.clear();
    if (list.starts_with('[') && list.ends_with(']')) {
      list = list.substr(1, list.size() - 2);
    }
    for (std::size_t at = list.find_first_not_of(kBetween); at < list.size();) {
      const std::size_t end = std::min(list.find_first_of(kBetween, at), list.size());
      std::string_view hash = list.substr(at, end - at);
      at = std::min(list.find_first_not_of(kBetween, end), list.size());
      double fraction = 0;
      const char* const last = hash.data() + hash.size();
      if (hash.find('.') != hash.npos && std::from_chars(hash.data(), last, fraction).ptr == last) {
        throw error(fmt::format("{}: expected whole numbers or names of blocks, got {}",
                                names_[TraceColumns::hashes], quote_text(hash)));
      }
      const bool quoted = hash.size() > 2 && hash.front() == hash.back() &&
                          (hash.front() == '\'' || hash.front() == '"');
      hash = quoted ? hash.substr(1, hash.size() - 2) : hash;
      numbers.push_back(hashes_->number_of(hash, quoted));
    }
  }

  CsvReader rows_;
  std::array<std::string, TraceColumns::kMeanings.size()> names_;
  std::array<std::size_t, TraceColumns::kMeanings.size()> places_{};
};

class ColumnRows::JsonLines final : public Table {
 public:
  JsonLines(const std::filesystem::path& path, TraceColumns columns, HashNames* hashes)
      : Table(hashes), lines_(path), columns_(std::move(columns)) {}

  bool next(std::vector<std::int64_t>& numbers) override {
    std::string_view line;
    if (!next_filled_line(lines_, line)) {
      return false;
    }
    Columns seen{};
    found_.clear();
    LineScanner scanner(line, lines_);
    scanner.expect('{');
    if (!scanner.take('}')) {
      do {
        const std::string_view key = scanner.key();
        scanner.expect(':');
        found_.push_back(key);
        const auto column = static_cast<std::size_t>(
            std::find(columns_.names.begin(), columns_.names.end(), key) - columns_.names.begin());
        if (column == seen.size() || key.empty()) {
          scanner.skip_value();
          continue;
        }
        if (std::exchange(seen[column], true)) {
          throw lines_.error(fmt::format("duplicate key {}", quote_text(key)));
        }
        if (column == TraceColumns::hashes) {
          read_hashes(scanner, numbers);
        } else {
          texts_[column] = scanner.value();
        }
      } while (scanner.take(','));
      scanner.expect('}');
    }
    scanner.expect_end();
    const std::string problem = missing_columns(columns_, seen, {found_.begin(), found_.end()});
    if (!problem.empty()) {
      throw lines_.error(problem);
    }
    return true;
  }
  [[nodiscard]] std::string_view text(TraceColumns::Meaning column) const override {
    return texts_[column];
  }
  [[nodiscard]] const std::filesystem::path& path() const override { return lines_.path(); }
  [[nodiscard]] std::int64_t line_number() const override { return lines_.line_number(); }
  [[nodiscard]] ConfigError error(std::string_view message) const override {
    return lines_.error(message);
  }

 private:
  void read_hashes(LineScanner& scanner, std::vector<std::int64_t>& numbers) {
    numbers.clear();
    scanner.expect('[');
    if (scanner.take(']')) {
      return;
    }
    do {
      const LineScanner::Hash hash = scanner.hash("a block's hash");
      numbers.push_back(hashes_->number_of(hash.text, hash.is_string));
    } while (scanner.take(','));
    scanner.expect(']');
  }

  LineReader lines_;
  TraceColumns columns_;
  std::array<std::string_view, TraceColumns::kMeanings.size()> texts_;
  std::vector<std::string_view> found_;
};

ColumnRows::ColumnRows(const std::filesystem::path& path, TraceColumns columns, HashNames* hashes)
    : columns_(std::move(columns)) {
  ByteReader reader(path);
  std::vector<char> buffer(1);
  while (reader.read(buffer) == 1 &&
         std::string_view(" \t\r\n\xef\xbb\xbf").find(buffer[0]) != std::string_view::npos) {
  }
  if (buffer[0] == '{') {
    table_ = std::make_unique<JsonLines>(path, columns_, hashes);
  } else {
    table_ = std::make_unique<Csv>(path, columns_, hashes);
  }
}
ColumnRows::~ColumnRows() = default;

const std::filesystem::path& ColumnRows::path() const { return table_->path(); }
std::int64_t ColumnRows::line_number() const { return table_->line_number(); }
ConfigError ColumnRows::error(std::string_view message) const { return table_->error(message); }

ConfigError ColumnRows::unexpected(TraceColumns::Meaning column, std::string_view expected) const {
  return error(fmt::format("{}: expected {}, got {}", columns_.names[column], expected,
                           quote_text(table_->text(column))));
}

Timestamp ColumnRows::read_time() const {
  const std::string_view text = table_->text(TraceColumns::time);
  const auto time =
      columns_.time_places ? parse_time(text, *columns_.time_places) : parse_timestamp(text);
  if (!time) {
    throw unexpected(
        TraceColumns::time,
        columns_.time_places
            ? "a number >= 0"
            : "seconds >= 0 such as \"12.5\" or a time such as \"2023-11-16 18:15:46.68\"");
  }
  if (form_ && time->form != *form_) {
    throw unexpected(TraceColumns::time, *form_ == TimestampForm::seconds
                                             ? "seconds as in the rows before"
                                             : "a date and time as in the rows before");
  }
  return *time;
}

Tokens ColumnRows::read_tokens(TraceColumns::Meaning column, std::int64_t minimum) const {
  const std::string_view text = table_->text(column);
  std::int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value < minimum || value > kMessageTokensMax) {
    throw unexpected(column, fmt::format("a whole number in {} .. {}", minimum, kMessageTokensMax));
  }
  return Tokens(value);
}

bool ColumnRows::next(Row& row) {
  if (!table_->next(row.hashes)) {
    return false;
  }
  row.time = read_time();
  form_ = row.time.form;
  row.input = read_tokens(TraceColumns::input, columns_.has(TraceColumns::hashes) ? 1 : 0);
  row.output = read_tokens(TraceColumns::output, 0);
  row.session = {};
  if (columns_.has(TraceColumns::session)) {
    row.session = table_->text(TraceColumns::session);
    if (row.session.empty() || row.session == "null") {
      throw unexpected(TraceColumns::session, "the session's name");
    }
  }
  return true;
}

}  // namespace kvtier
