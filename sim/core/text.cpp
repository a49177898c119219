#include "sim/core/text.hpp"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace kvtier {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};

/// The first character of `text` (not empty); its size is 0 bytes if it is not UTF-8. RFC 3629 has
/// no overlong forms, no surrogates and nothing above U+10FFFF.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  constexpr unsigned kAscii = 0x80;
  if (byte(0) < kAscii) {
    return {byte(0), 1};
  }
  struct Form {
    unsigned mask;
    unsigned lead;
    char32_t least;
  };
  constexpr Form kForms[]{{0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
  std::size_t bytes = 2;
  for (const Form& form : kForms) {
    if ((byte(0) & form.mask) != form.lead) {
      ++bytes;
      continue;
    }
    char32_t code = byte(0) & ~form.mask;
    if (text.size() < bytes) {
      return {};
    }
    for (std::size_t i = 1; i < bytes; ++i) {
      if ((byte(i) & 0xC0U) != 0x80U) {
        return {};
      }
      code = code << 6U | (byte(i) & 0x3FU);
    }
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    return code < form.least || is_surrogate || code > 0x10FFFF ? Character{}
                                                                : Character{code, bytes};
  }
  return {};
}

std::string shown(std::string_view text, bool one_line) {
  constexpr const char* kReplacement = "\xEF\xBF\xBD";
  std::string result;
  while (!text.empty()) {
    const Character character = first_character(text);
    const char32_t code = character.code;
    // ASCII control characters, DEL and C1 control characters, because terminals obey all of them.
    const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    const bool stays = code == '\t' || (code == '\n' && !one_line);
    if (character.bytes == 0) {
      result += kReplacement;
    } else if (code == '\n' && one_line) {
      result += "\\n";
    } else if (is_control && !stays) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
    } else {
      result += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes == 0 ? 1 : character.bytes);
  }
  return result;
}

}  // namespace

std::size_t end_of_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    // Fast path: most text is ASCII, and traces are long.
    constexpr std::uint64_t kHighBits = 0x8080808080808080U;
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & kHighBits) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t bytes = first_character(text.substr(at)).bytes;
    if (bytes == 0) {
      break;
    }
    at += bytes;
  }
  return at;
}

std::string printable(std::string_view text) { return shown(text, false); }

std::string printable_line(std::string_view text) { return shown(text, true); }

std::string shortened(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) {
    return std::string(text);
  }
  std::size_t length = bytes_max;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  return std::string(text.substr(0, length)) + "...";
}

std::string quote_text(std::string_view text) {
  return "\"" + shortened(text, kQuotedBytesMax) + "\"";
}

std::string formula_safe(std::string_view text) {
  constexpr std::string_view kBeginsFormula = "=+-@\t\r";
  const bool is_formula =
      !text.empty() && kBeginsFormula.find(text.front()) != text.npos && !parse_number(text);
  return is_formula ? "'" + std::string(text) : std::string(text);
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const char* const end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, value);
  const bool is_number = error == std::errc() && end == end_of_text && std::isfinite(value);
  return is_number ? std::optional(value) : std::nullopt;
}

}  // namespace kvtier
