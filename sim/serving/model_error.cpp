#include "sim/serving/model_error.hpp"

#include <string>

namespace kvtier {
namespace {

/// Shares by source over all instances, and what else their errors depend on.
TimeOrigin origin_of(const RunConfig& config, std::span<const SourceUse> use,
                     SourceSeconds TimingUse::*part) {
  TimeOrigin origin{.shares = {},
                    .gpu = config.hardware.gpu.name,
                    .relative = {},
                    .has_experts = config.model.experts.has_value()};
  double seconds = 0;
  for (const SourceUse& one : use) {
    const bool is_sibling = one.hardware->profile && one.hardware->sibling;
    if (is_sibling) {
      origin.relative = one.hardware->profile->name;
      origin.sibling_factor = *one.hardware->sibling;
    }
    const SourceSeconds& own = one.timing.*part;
    const SourceShares shares = source_shares(own.shares(), is_sibling);
    seconds += own.all;
    for (std::size_t i = 0; i < shares.all.size(); ++i) {
      origin.shares.all[i] += own.all * shares.all[i];
    }
  }
  for (double& share : origin.shares.all) {
    share = seconds > 0 ? share / seconds : 0;
  }
  return origin;
}

Json shares_json(const SourceShares& shares) {
  Json json;
  for (std::size_t i = 0; i < shares.all.size(); ++i) {
    json[kTimeSourceNames[i]] = shares.all[i];
  }
  return json;
}

/// The range of each statistic of a distribution; null for an empty one.
Json ranges_json(const Json& statistics, const ErrorRange& range) {
  if (!statistics.is_object()) {
    return nullptr;
  }
  Json json;
  for (const auto& [name, value] : statistics.items()) {
    json[name] = range_json(range, value.get<double>());
  }
  return json;
}

TimeOrigin read_origin(const Json& error, const std::string& gpu, const char* part) {
  const Json& relative = error.at("relative");
  TimeOrigin origin{.shares = {},
                    .gpu = gpu,
                    .relative = relative.is_null() ? "" : relative.get<std::string>(),
                    .sibling_factor = error.at("sibling_factor").get<double>(),
                    .has_experts = error.at("experts").get<bool>()};
  const Json& shares = error.at("sources").at(part);
  for (std::size_t i = 0; i < kTimeSourceNames.size(); ++i) {
    origin.shares.all[i] = shares.at(kTimeSourceNames[i]).get<double>();
  }
  return origin;
}

ErrorRange read_range(const Json& json) {
  return {.low = json.at("low").get<double>(), .high = json.at("high").get<double>()};
}

}  // namespace

ModelError model_error(const RunConfig& config, const Json& metrics,
                       std::span<const SourceUse> use) {
  ModelError error{.prefill = origin_of(config, use, &TimingUse::prefill),
                   .decode = origin_of(config, use, &TimingUse::decode)};
  error.ttft = error_range(error.prefill);
  error.tpot = error_range(error.decode);
  const auto prefill = metrics.at("gpu_seconds").at("prefill").get<double>();
  const auto decode = metrics.at("gpu_seconds").at("decode").get<double>();
  const double both = prefill + decode;
  error.gpu_time = mean_range(error.ttft, error.tpot, both > 0 ? prefill / both : 0);
  return error;
}

Json range_json(const ErrorRange& range, double value) {
  return {{"low", value * range.low}, {"high", value * range.high}};
}

Json to_json(const ModelError& error) {
  const TimeOrigin& origin = error.prefill;
  return {{"relative", origin.relative.empty() ? Json() : Json(origin.relative)},
          {"sibling_factor", origin.sibling_factor},
          {"experts", origin.has_experts},
          {"sources",
           {{"prefill", shares_json(origin.shares)}, {"decode", shares_json(error.decode.shares)}}},
          {"factors",
           {{"ttft", range_json(error.ttft)},
            {"tpot", range_json(error.tpot)},
            {"gpu_time", range_json(error.gpu_time)}}}};
}

Json model_error_report(const ModelError& error, const Json& metrics) {
  Json json = to_json(error);
  json["ttft_seconds"] = ranges_json(metrics.at("ttft_seconds"), error.ttft);
  json["tpot_seconds"] = ranges_json(metrics.at("tpot_seconds"), error.tpot);
  return json;
}

std::optional<ModelError> model_error_of(const Json& result) {
  if (!result.is_object() || !result.contains("model_error")) {
    return std::nullopt;
  }
  const Json& error = result["model_error"];
  try {
    const Json& factors = error.at("factors");
    const std::string gpu =
        result.value(Json::json_pointer("/config/hardware/gpu/name"), std::string());
    return ModelError{.prefill = read_origin(error, gpu, "prefill"),
                      .decode = read_origin(error, gpu, "decode"),
                      .ttft = read_range(factors.at("ttft")),
                      .tpot = read_range(factors.at("tpot")),
                      .gpu_time = read_range(factors.at("gpu_time"))};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace kvtier
