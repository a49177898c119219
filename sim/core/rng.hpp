#pragma once

#include <cstdint>
#include <string_view>

#include <boost/random/exponential_distribution.hpp>
#include <boost/random/gamma_distribution.hpp>
#include <boost/random/mersenne_twister.hpp>
#include <boost/random/normal_distribution.hpp>
#include <boost/random/uniform_01.hpp>
#include <boost/random/weibull_distribution.hpp>

namespace kvtier {

/// The i-th number of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) with this seed. It gives 64
/// random bits by index, for callers to which a stream is too slow.
[[nodiscard]] constexpr std::uint64_t random_bits_at(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// The seed of the stream `name` under `master_seed`: equal inputs give equal streams on every
/// platform.
[[nodiscard]] std::uint64_t stream_seed(std::uint64_t master_seed, std::string_view name);

/// The random numbers of one component. Each component has its own named stream, so a new draw of
/// one never shifts the draws of another. Boost's distributions are used, because the standard
/// library's differ between toolchains.
class RandomStream {
 public:
  RandomStream(std::uint64_t master_seed, std::string_view name)
      : engine_(stream_seed(master_seed, name)) {}

  /// Uniform in [0, 1).
  [[nodiscard]] double uniform() { return boost::random::uniform_01<double>()(engine_); }
  [[nodiscard]] double normal() {
    return boost::random::normal_distribution<double>(0.0, 1.0)(engine_);
  }
  /// exp(mu + sigma * normal): `mu` is the logarithm of the median.
  [[nodiscard]] double lognormal(double mu, double sigma);
  [[nodiscard]] double exponential(double mean) {
    return boost::random::exponential_distribution<double>(1.0)(engine_) * mean;
  }
  [[nodiscard]] double gamma(double shape, double scale) {
    return boost::random::gamma_distribution<double>(shape, 1.0)(engine_) * scale;
  }
  [[nodiscard]] double weibull(double shape, double scale) {
    return boost::random::weibull_distribution<double>(shape, 1.0)(engine_) * scale;
  }
  /// Uniform over 0 .. bound-1; `bound` > 0.
  [[nodiscard]] std::int64_t index(std::int64_t bound);

 private:
  boost::random::mt19937_64 engine_;
};

}  // namespace kvtier
