#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvtier {

/// The number of bytes before the first byte that is not UTF-8.
[[nodiscard]] std::size_t end_of_utf8(std::string_view text);
[[nodiscard]] inline bool is_utf8(std::string_view text) {
  return end_of_utf8(text) == text.size();
}

/// `text` made safe for a terminal. Control characters become escapes such as `\u001b`, line ends
/// and tabs stay, and bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string printable(std::string_view text);

/// The same for one line: line ends become `\n`.
[[nodiscard]] std::string printable_line(std::string_view text);

/// The first bytes of a long text and "...". No UTF-8 character is cut.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t bytes_max);

/// A value as messages quote it: `"TEXT"`, a long one shortened.
[[nodiscard]] std::string quote_text(std::string_view text);

/// The most bytes of a value in a message.
inline constexpr std::size_t kQuotedBytesMax = 60;

/// `text` as a cell that no spreadsheet evaluates: with an apostrophe before it if it begins like a
/// formula and is no number (OWASP, CSV injection).
[[nodiscard]] std::string formula_safe(std::string_view text);

/// The finite number that the whole text writes, in any locale; no spaces, no sign `+`.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

}  // namespace kvtier
