#pragma once

#include "hw/model/model.hpp"

namespace kvtier::calibrate::test {

/// A model so small that each measurement takes microseconds.
inline ModelConfig small_model() {
  ModelConfig model;
  model.name = "small";
  model.source = "made up";
  model.layers = 2;
  model.hidden_size = 64;
  model.attention_heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.intermediate_size = 96;
  model.gated_mlp = true;
  model.vocabulary_size = 128;
  model.tied_embeddings = true;
  model.bytes_per_element = 4;
  model.kv_bytes_per_element = 4;
  model.context_window = Tokens(8192);
  return model;
}

}  // namespace kvtier::calibrate::test
