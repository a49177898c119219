#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "sim/core/units.hpp"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace kvtier {

/// Counts the tokens of a text; used by importers of texts.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Tokens of `text` (UTF-8) alone, without begin or end tokens.
  [[nodiscard]] virtual Tokens count(std::string_view text) const = 0;
};

/// One token for every `characters` code points, rounded up: a rule of thumb that needs no model.
class CharsTokenizer final : public Tokenizer {
 public:
  explicit CharsTokenizer(std::int64_t characters);
  [[nodiscard]] Tokens count(std::string_view text) const override;

 private:
  std::int64_t characters_;
};

/// The tokenizer of a SentencePiece model (Kudo and Richardson, EMNLP 2018), such as Llama-2's
/// tokenizer.model.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// Throws ConfigError if the file is missing or not a model.
  explicit SentencePieceTokenizer(const std::filesystem::path& model);
  ~SentencePieceTokenizer() override;
  /// Throws ConfigError if the model cannot encode the text.
  [[nodiscard]] Tokens count(std::string_view text) const override;

 private:
  std::filesystem::path model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

/// True if `specification` is a rule such as "chars:4", false if it is the path of a model.
[[nodiscard]] bool is_chars_tokenizer(std::string_view specification);

/// Makes a tokenizer of "chars:N" with N in 1 .. 1000, or of the path of a SentencePiece model; a
/// relative path starts at `base_dir`. Throws ConfigError.
[[nodiscard]] std::unique_ptr<Tokenizer> make_tokenizer(const std::string& specification,
                                                        const std::filesystem::path& base_dir);

}  // namespace kvtier
