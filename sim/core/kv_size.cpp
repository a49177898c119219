#include "sim/core/kv_size.hpp"

#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/quantity.hpp"

namespace kvtier {
namespace {

struct Prefix {
  std::string_view name;
  std::int64_t factor;
};
/// The largest first.
constexpr std::array kPrefixes{Prefix{"Gi", std::int64_t{1} << 30},
                               Prefix{"G", 1'000'000'000},
                               Prefix{"Mi", 1 << 20},
                               Prefix{"M", 1'000'000},
                               Prefix{"Ki", 1 << 10},
                               Prefix{"k", 1'000}};
constexpr std::array kUnits{std::pair{std::string_view("tokens"), KvSize::Unit::tokens},
                            std::pair{std::string_view("blocks"), KvSize::Unit::blocks}};
constexpr std::int64_t kMost = std::int64_t{1} << 60;

}  // namespace

std::optional<KvSize> parse_kv_size(std::string_view text) {
  for (const auto& [name, unit] : kUnits) {
    if (!text.ends_with(name)) {
      continue;
    }
    text.remove_suffix(name.size());
    std::int64_t factor = 1;
    for (const Prefix& prefix : kPrefixes) {
      if (text.ends_with(prefix.name)) {
        text.remove_suffix(prefix.name.size());
        factor = prefix.factor;
        break;
      }
    }
    if (text.ends_with(' ')) {
      text.remove_suffix(1);
    }
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || end != text.data() + text.size() || count < 0 ||
        count > kMost / factor) {
      return std::nullopt;
    }
    return KvSize{unit, count * factor};
  }
  const std::optional<Bytes> bytes = parse_quantity<Bytes>(text);
  return bytes ? std::optional(KvSize{KvSize::Unit::bytes, bytes->value}) : std::nullopt;
}

std::string format_kv_size(const KvSize& size) {
  if (size.unit == KvSize::Unit::bytes) {
    return format_quantity(Bytes(size.count));
  }
  const std::string_view unit = kUnits[size.unit == KvSize::Unit::tokens ? 0 : 1].first;
  for (const Prefix& prefix : kPrefixes) {
    if (size.count != 0 && size.count % prefix.factor == 0) {
      return fmt::format("{}{}{}", size.count / prefix.factor, prefix.name, unit);
    }
  }
  return fmt::format("{}{}", size.count, unit);
}

std::int64_t blocks_of(const KvSize& size, Tokens block, Bytes bytes_per_token) {
  switch (size.unit) {
    case KvSize::Unit::blocks:
      return size.count;
    case KvSize::Unit::tokens:
      return size.count / block.value;
    case KvSize::Unit::bytes:
      break;
  }
  KVTIER_ASSERT(bytes_per_token.value > 0, "a size in bytes needs the bytes of a token");
  return size.count / (bytes_per_token * block.value).value;
}

void read_config(KvSize& size, const Json& json, const std::string& pointer, Problems& problems) {
  const std::optional<KvSize> read =
      json.is_string() ? parse_kv_size(json.get<std::string>()) : std::nullopt;
  if (read && read->count > 0) {
    size = *read;
  } else {
    problems.add(pointer,
                 "expected a size of KV such as \"64GiB\", \"5Mitokens\" or \"1000blocks\", got " +
                     quote_json(json));
  }
}

Json write_config(const KvSize& size) { return format_kv_size(size); }

Json config_schema(const KvSize&) {
  return Json{{"type", "string"},
              {"pattern", "^0*[1-9][0-9]* ?(k|Ki|Mi?|Gi?)?(tokens|blocks)$|" +
                              std::string(quantity_format<Bytes>().pattern)}};
}

}  // namespace kvtier
