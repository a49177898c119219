#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/compressed_stream.hpp"
#include "traces/tokenizer.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Reads conversations in the format of ShareGPT's dumps, plain, gzip or zstd, with one
/// conversation in memory at a time. Other keys are ignored; the order of keys does not matter.
///
///     [{"id": .., "conversations": [{"from": "human", "value": ".."},
///                                   {"from": "gpt", "value": ".."}]}]
///
/// "human" and "user" are the user's side, "gpt", "chatgpt", "bing", "bard" and "assistant" the
/// model's. "system" counts as the user's side, because its tokens are part of the prompt.
/// Consecutive messages of one side become one message. Responses before the first prompt, a last
/// prompt without a response, messages of other roles and conversations without a turn are dropped.
/// Lone surrogates ("\ud83d", which is not valid Unicode) become U+FFFD. The report counts each of
/// these changes. The dumps have no times.
///
/// Malformed JSON throws ConfigError naming the file and the byte (from 0, of the uncompressed
/// text).
class ShareGptJsonReader final : public TraceSource {
 public:
  /// The longest conversation. The limit keeps other files from taking all memory.
  static constexpr std::size_t kConversationBytesMax = std::size_t{256} << 20;

  ShareGptJsonReader(const std::filesystem::path& path, std::unique_ptr<Tokenizer> tokenizer,
                     Tokens message_overhead = {});

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  /// Reads the text of the list's next object into `text_`; false at the end of the list.
  bool read_element();
  /// The next byte that is not white space, without consuming it; '\0' at the end of the data.
  char peek_token();
  /// Reads more bytes once all are consumed; false at the end. Throws ConfigError on damage.
  bool fill();
  void replace_lone_surrogates();
  [[nodiscard]] std::int64_t offset() const {
    return buffer_offset_ + static_cast<std::int64_t>(at_);
  }
  [[noreturn]] void fail(std::int64_t offset, std::string_view message) const;

  ByteReader bytes_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::int64_t buffer_offset_ = 0;

  std::string text_;
  std::int64_t text_offset_ = 0;
  bool opened_ = false;
  bool closed_ = false;
  bool any_element_ = false;
};

}  // namespace kvtier
