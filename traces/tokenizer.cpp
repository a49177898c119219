#include "traces/tokenizer.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr std::string_view kCharsPrefix = "chars:";

}  // namespace

CharsTokenizer::CharsTokenizer(std::int64_t characters) : characters_(characters) {
  KVTIER_ASSERT(characters > 0, "a token has characters");
}

Tokens CharsTokenizer::count(std::string_view text) const {
  // Every byte of UTF-8 except 10xxxxxx begins a code point.
  const auto code_points = std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  });
  return Tokens((static_cast<std::int64_t>(code_points) + characters_ - 1) / characters_);
}

SentencePieceTokenizer::SentencePieceTokenizer(const std::filesystem::path& model)
    : model_(model), processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  // The file is read here, to tell a missing file from an invalid model.
  const std::string bytes = read_text_file(model);
  const auto status = processor_->LoadFromSerializedProto(bytes);
  if (!status.ok()) {
    throw ConfigError(fmt::format("{}: not a SentencePiece model", model.string()));
  }
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

Tokens SentencePieceTokenizer::count(std::string_view text) const {
  std::vector<int> ids;
  const auto status = processor_->Encode(text, &ids);
  if (!status.ok()) {
    throw ConfigError(
        fmt::format("{}: cannot encode a text: {}", model_.string(), status.ToString()));
  }
  return Tokens(static_cast<std::int64_t>(ids.size()));
}

bool is_chars_tokenizer(std::string_view specification) {
  return specification.starts_with(kCharsPrefix);
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& specification,
                                          const std::filesystem::path& base_dir) {
  if (!is_chars_tokenizer(specification)) {
    return std::make_unique<SentencePieceTokenizer>(base_dir / specification);
  }
  constexpr std::int64_t kCharactersMax = 1000;
  const std::string_view digits = std::string_view(specification).substr(kCharsPrefix.size());
  std::int64_t characters = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), characters);
  if (error != std::errc() || end != digits.data() + digits.size() || characters < 1 ||
      characters > kCharactersMax) {
    throw ConfigError(
        fmt::format("tokenizer {}: expected chars:N with N in 1 .. {}, such as \"chars:4\"",
                    quote_text(specification), kCharactersMax));
  }
  return std::make_unique<CharsTokenizer>(characters);
}

}  // namespace kvtier
