#include "hw/model/hardware.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/load.hpp"

namespace kvtier {
namespace {

using namespace literals;
using Lines = std::vector<std::string>;
using test::load_hardware;
using test::load_model;
using test::problems_of;
using test::with_gpus;

Json a100_json() { return test::load_json("hardware", "a100-80g"); }

Lines problems_of(const HardwareConfig& hardware, const std::string& pointer = "/hardware") {
  Problems problems;
  check_hardware(hardware, pointer, problems);
  return problems.lines();
}

TEST(HardwareFiles, ReadStrictlyAndRoundTrip) {
  const Lines names = test::config_names("hardware");
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Json json = test::load_json("hardware", name);
    const auto hardware = test::read_config_json<HardwareConfig>(json);
    EXPECT_EQ(hardware.name, name);
    EXPECT_FALSE(hardware.source.empty());
    EXPECT_FALSE(hardware.sources.empty());
    EXPECT_EQ(problems_of(hardware, ""), Lines{});
    for (const char* key : {"gpus", "gpu", "hbm", "links", "efficiency"}) {
      // The file may leave out what has a default.
      const Json written = write_value(hardware)[key];
      Json read = written;
      read.merge_patch(json[key]);
      EXPECT_EQ(written, read) << key;
    }
    EXPECT_EQ(test::read_config_json<HardwareConfig>(write_value(hardware)), hardware);
  }
}

/// Dotted paths of the figures of a file.
void add_figures(const Json& json, const std::string& path, Lines& figures) {
  for (const auto& [key, value] : json.items()) {
    const std::string below = path.empty() ? key : path + "." + key;
    if (value.is_object() && key != "sources" && key != "engine_profiles") {
      add_figures(value, below, figures);
    } else if (value.is_number() ||
               (value.is_string() && key != "name" && key != "source" && key != "profile" &&
                key != "unmeasured" && key != "$schema" && value != "none")) {
      figures.push_back(below);
    }
  }
}

TEST(HardwareFiles, NameTheSourceOfEachFigure) {
  for (const std::string& name : test::config_names("hardware")) {
    const Json json = test::load_json("hardware", name);
    Lines figures;
    add_figures(json, "", figures);
    EXPECT_GT(figures.size(), 10U);
    for (const std::string& figure : figures) {
      bool found = false;
      for (std::string at = figure; !at.empty() && !found;) {
        found = json["sources"].contains(at);
        const std::size_t dot = at.rfind('.');
        at = dot == std::string::npos ? "" : at.substr(0, dot);
      }
      EXPECT_TRUE(found) << name << ": " << figure;
    }
  }
}

TEST(HardwareFiles, H200IsAnH100WithMoreAndFasterMemory) {
  const auto h100 = load_hardware("h100-80g");
  const auto h200 = load_hardware("h200");
  EXPECT_EQ(h100.gpu.peak, h200.gpu.peak);
  EXPECT_EQ(h100.links, h200.links);
  EXPECT_EQ(h100.links.pcie.of, HostLinkOf::gpu);
  EXPECT_EQ(hbm_bytes(h200), Bytes(4 * (std::int64_t{143'156} << 20)));
  // The datasheets' 4.8 and 3.35 TB/s.
  EXPECT_NEAR(h200.hbm.bandwidth.value / h100.hbm.bandwidth.value, 1.433, 0.001);
  // Half of 1,979 TFLOP/s, which are with sparsity.
  EXPECT_NEAR(h100.gpu.peak.value, 1979e12 / 2, 1e12);
}

// 8 x 6.76 + 2,048 x 10.9 / 35,064 + 28,610 x 0.38 / 35,064 = 54.08 + 0.637 + 0.310 = 55.03 $/h.
TEST(HardwareFiles, TheBoxOfEightH100CostsWhatItsInstanceDoes) {
  const HardwareConfig box = load_hardware("h100-8x");
  EXPECT_EQ(box.gpus, 8);
  EXPECT_EQ(box.dram->capacity, 2_TiB);
  EXPECT_EQ(box.ssd->capacity, Bytes(8 * std::int64_t{3'840'000'000'000}));
  EXPECT_DOUBLE_EQ(box.ssd->bandwidth.forward.rate.value, 8 * 6.9e9);
  EXPECT_DOUBLE_EQ(box.ssd->bandwidth.backward.rate.value, 8 * 4.1e9);
  // 8 x 52.8 GB/s of links are within 450 GB/s of host memory, which are within 16 x 38.4.
  EXPECT_LT(host_link(box).forward.rate, *box.dram->bandwidth);
  EXPECT_LT(*box.dram->bandwidth, BytesPerSecond(16 * 38.4e9));
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
  EXPECT_NEAR(8 * box.gpu.price.value + gib(box.dram->capacity) * box.dram->price.value +
                  gib(box.ssd->capacity) * box.ssd->price.value,
              55.04, 0.02);
}

// 10.9 $ over 35,064 hours are 0.00031 $/h, a twenty-eighth of the paper's 0.0088.
TEST(HardwareFiles, BoughtMemoryCostsAFractionOfThePapersHourlyPrice) {
  const double paper = load_hardware().dram->price.value;
  for (const char* name : {"h100-80g", "h100-8x", "h200", "l40s"}) {
    const auto hardware = load_hardware(name);
    EXPECT_NEAR(paper / hardware.dram->price.value, 28.3, 0.1) << name;
    EXPECT_EQ(hardware.dram->price.years, 4) << name;
  }
}

TEST(HardwareFiles, A100IsTheServerOfAttentionStore) {
  const HardwareConfig hardware = load_hardware();
  EXPECT_EQ(hardware.gpus, 4);
  EXPECT_EQ(hbm_bytes(hardware), 320_GiB);
  ASSERT_TRUE(hardware.dram);
  EXPECT_EQ(hardware.dram->capacity, 128_GiB);
  ASSERT_TRUE(hardware.ssd);
  EXPECT_EQ(hardware.ssd->capacity, 10_TiB);
  EXPECT_EQ(hardware.ssd->bandwidth.both, BytesPerSecond(5e9));
  // 2K tokens of LLaMA-65B are 5 GiB and load in 192 ms at the paper's rounding; here 5.37e9 B /
  // 26e9 B/s = 206 ms.
  EXPECT_NEAR(transfer_duration(kv_bytes(load_model("llama-65b"), 2048_tokens),
                                hardware.links.pcie.forward.rate)
                  .seconds(),
              0.192, 0.015);
}

TEST(HardwareFiles, PricesGiveTheStorageSharesOfAttentionStore) {
  const HardwareConfig hardware = load_hardware();
  // 128 x 0.0088 + 10240 x 0.000082 = 1.1264 + 0.8397 = 1.9661 $/h, beside 10 $/h (2 GPUs) or 20
  // (4).
  const double storage = 128 * hardware.dram->price.value + 10240 * hardware.ssd->price.value;
  EXPECT_NEAR(storage / (storage + 2 * hardware.gpu.price.value), 0.164, 0.0005);
  EXPECT_NEAR(storage / (storage + 4 * hardware.gpu.price.value), 0.090, 0.0006);
}

TEST(HardwareConfig, MemoriesThatAreNotInstalledReadAndWriteAsNone) {
  Json json = a100_json();
  json["dram"] = "none";
  json.erase("ssd");
  const auto hardware = test::read_config_json<HardwareConfig>(json);
  EXPECT_FALSE(hardware.dram);
  EXPECT_FALSE(hardware.ssd);
  EXPECT_EQ(write_value(hardware)["dram"], "none");
  EXPECT_EQ(write_value(hardware)["ssd"], "none");
}

TEST(HardwareConfig, NamesTheTwoWaysOfEachLink) {
  Json json = a100_json();
  json["links"]["pcie"] = Json{{"to_device", "1GB/s"}, {"to_host", "2GB/s"}, {"both", "3GB/s"}};
  json["ssd"]["bandwidth"] = Json{{"read", "4GB/s"}, {"write", "5GB/s"}, {"both", "6GB/s"}};
  const auto hardware = test::read_config_json<HardwareConfig>(json);
  EXPECT_EQ(hardware.links.pcie.forward.rate, BytesPerSecond(1e9));
  EXPECT_EQ(hardware.links.pcie.backward.rate, BytesPerSecond(2e9));
  EXPECT_EQ(hardware.links.pcie.both, BytesPerSecond(3e9));
  EXPECT_EQ(hardware.ssd->bandwidth.forward.rate, BytesPerSecond(4e9));
  EXPECT_EQ(hardware.ssd->bandwidth.backward.rate, BytesPerSecond(5e9));
  EXPECT_EQ(hardware.ssd->bandwidth.both, BytesPerSecond(6e9));
}

TEST(HardwareConfig, ReadsAServiceCurveOrItsRateAlone) {
  Json json = a100_json();
  json["ssd"]["bandwidth"]["read"] =
      Json{{"rate", "5GB/s"}, {"latency", "80us"}, {"alone", "1.5GB/s"}, {"depth", "1MiB"}};
  json["ssd"]["bandwidth"]["write"] = Json{{"rate", "5GB/s"}};
  json["ssd"]["bandwidth"]["load"] =
      Json{{"latency", "2ms"}, {"alone", "1GB/s"}, {"depth", "4MiB"}};
  const auto hardware = test::read_config_json<HardwareConfig>(json);
  const SsdCurves& drives = hardware.ssd->bandwidth;
  EXPECT_EQ(drives.forward.rate, BytesPerSecond(5e9));
  EXPECT_EQ(drives.forward.latency, SimDuration(80'000));
  EXPECT_EQ(drives.forward.alone, BytesPerSecond(1.5e9));
  EXPECT_EQ(drives.forward.depth, Bytes(1 << 20));
  EXPECT_EQ(drives.load->alone, BytesPerSecond(1e9));
  const Json written = write_value(hardware)["ssd"]["bandwidth"];
  EXPECT_EQ(written["read"], json["ssd"]["bandwidth"]["read"]);
  EXPECT_EQ(written["write"], "5GB/s") << "a curve of a rate alone";
  EXPECT_EQ(test::read_config_json<HardwareConfig>(write_value(hardware)), hardware);
}

TEST(HardwareConfig, RefusesInvalidCurves) {
  Json json = a100_json();
  Json& drives = json["ssd"]["bandwidth"];
  drives["read"] = Json{{"latency", "11s"}, {"alone", "1B/s"}, {"depht", "1MiB"}};
  drives["write"] = 5;
  EXPECT_EQ(
      problems_of<HardwareConfig>(json),
      (Lines{"/ssd/bandwidth/read/rate: missing key",
             "/ssd/bandwidth/read/latency: expected a duration >= 0 and <= 10s such as "
             "\"360ms\", got \"11s\"",
             "/ssd/bandwidth/read/alone: expected a bandwidth >= 1kB/s such as \"26GB/s\", got "
             "\"1B/s\"",
             "/ssd/bandwidth/read/depht: unknown key (did you mean \"depth\"?)",
             "/ssd/bandwidth/write: expected a bandwidth >= 100kB/s such as \"26GB/s\", got "
             "5"}));
  HardwareConfig hardware = load_hardware();
  hardware.ssd->bandwidth.backward.alone = BytesPerSecond(1e9);
  hardware.ssd->bandwidth.load = CurveStart{.alone = BytesPerSecond(1e9)};
  EXPECT_EQ(problems_of(hardware),
            (Lines{"/hardware/ssd/bandwidth/write/depth: expected the bytes that move at the rate "
                   "\"alone\", got 0B",
                   "/hardware/ssd/bandwidth/load/depth: expected the bytes that move at the rate "
                   "\"alone\", got 0B"}));
}

TEST(HardwareConfig, NamesTheSuccessorsOfKeysThatAreGone) {
  Json json = a100_json();
  json["links"]["pcie"]["latency"] = "10us";
  json["links"]["pcie"]["beside_compute"] = Json{{"to_host", 0.8}};
  json["ssd"]["bandwidth"]["latency"] = "80us";
  json["ssd"]["bandwidth"]["beside_copies"] = Json{{"read", 0.5}};
  json["ssd"]["bandwidth"]["one_request"] = "none";
  json["ssd"]["bandwidth"]["one_load"] = "none";
  EXPECT_EQ(
      problems_of<HardwareConfig>(json),
      (Lines{"/ssd/bandwidth/latency: this key is gone: write it into the curves \"read\" and "
             "\"write\"",
             "/ssd/bandwidth/beside_copies: this key is gone: write /hardware/contention, with "
             "\"while\": \"pcie\"",
             "/ssd/bandwidth/one_request: this key is gone: write \"alone\" and \"depth\" into the "
             "curves \"read\" and \"write\"",
             "/ssd/bandwidth/one_load: this key is gone: write \"load\": {\"latency\", \"alone\", "
             "\"depth\"}",
             "/links/pcie/latency: this key is gone: write it into the curves \"to_device\" and "
             "\"to_host\"",
             "/links/pcie/beside_compute: this key is gone: write /hardware/contention, with "
             "\"while\": \"compute\""}));
}

TEST(HardwareConfig, ListsContention) {
  Json json = a100_json();
  EXPECT_FALSE(write_value(test::read_config_json<HardwareConfig>(json)).contains("contention"));
  json["contention"] = Json::parse(R"([{"on": "ssd_read", "while": "pcie", "left": 0.5},
                                       {"on": "pcie_to_host", "while": "compute", "left": 0.8}])");
  const auto hardware = test::read_config_json<HardwareConfig>(json);
  EXPECT_EQ(hardware.contention,
            (std::vector<Contention>{{ContendedWay::ssd_read, ContendingWork::pcie, 0.5},
                                     {ContendedWay::pcie_to_host, ContendingWork::compute, 0.8}}));
  EXPECT_EQ(write_value(hardware)["contention"], json["contention"]);
}

TEST(HardwareConfig, RefusesContentionThatIsListedTwiceOrOfALinkWithItself) {
  Json json = a100_json();
  json["contention"] = Json::parse(R"([{"on": "ssd", "while": "pcie", "left": 1.5}, {}])");
  EXPECT_EQ(problems_of<HardwareConfig>(json),
            (Lines{"/contention/0/on: expected one of pcie_to_device, pcie_to_host, ssd_read, "
                   "ssd_write, got \"ssd\"",
                   "/contention/0/left: expected a number >= 0.001 and <= 1, got 1.5",
                   "/contention/1/on: missing key", "/contention/1/while: missing key",
                   "/contention/1/left: missing key"}));
  HardwareConfig hardware = load_hardware();
  using enum ContendedWay;
  hardware.contention = {{ssd_write, ContendingWork::pcie, 0.5},
                         {pcie_to_host, ContendingWork::pcie, 0.5},
                         {pcie_to_host, ContendingWork::compute, 0.5},
                         {pcie_to_host, ContendingWork::compute, 0.7}};
  hardware.ssd.reset();  // contention on drives then has no effect
  EXPECT_EQ(problems_of(hardware),
            (Lines{"/hardware/contention/1/while: pcie_to_host is a way of pcie, whose transfers "
                   "share its rate",
                   "/hardware/contention/3: pcie_to_host while compute is listed twice"}));
}

TEST(HardwareConfig, ReportsEveryProblemOfAFile) {
  Json json = a100_json();
  json["gpus"] = 0;
  json["gpu"]["peak"] = "312TB/s";
  json["hbm"]["capacity"] = "0GiB";
  json["hbm"]["bandwidth"] = "-1GB/s";
  json["dram"].erase("capacity");
  json["dram"]["capcity"] = "128GiB";
  json["ssd"]["bandwidth"]["both"] = "0GB/s";
  json["links"]["pcie"].erase("both");
  json["links"]["gpu"]["latency"] = "-1us";
  json["efficiency"]["compute"] = 1.01;
  json["efficiency"]["memory"] = 0;
  EXPECT_EQ(
      problems_of<HardwareConfig>(json),
      (Lines{"/gpus: expected a whole number >= 1 and <= 1024, got 0",
             "/gpu/peak: expected a compute rate >= 100MFLOP/s such as \"312TFLOP/s\", got "
             "\"312TB/s\"",
             "/hbm/capacity: expected a size > 0 such as \"128GiB\", got \"0GiB\"",
             "/hbm/bandwidth: expected a bandwidth >= 10MB/s such as \"26GB/s\", got \"-1GB/s\"",
             "/dram/capacity: missing key",
             "/dram/capcity: unknown key (did you mean \"capacity\"?)",
             "/ssd/bandwidth/both: expected a bandwidth >= 100kB/s such as \"26GB/s\", got "
             "\"0GB/s\"",
             "/links/pcie/both: missing key",
             "/links/gpu/latency: expected a duration >= 0 such as \"360ms\", got \"-1us\"",
             "/efficiency/compute: expected a number >= 0.001 and <= 1, got 1.01",
             "/efficiency/memory: expected a number >= 0.001 and <= 1, got 0"}));
}

TEST(HardwareConfig, EveryFigureButSourcesAndMemoriesIsRequired) {
  EXPECT_EQ(problems_of<HardwareConfig>(Json::object()),
            (Lines{"/name: missing key", "/source: missing key", "/gpus: missing key",
                   "/gpu: missing key", "/hbm: missing key", "/links: missing key",
                   "/efficiency: missing key"}));
}

TEST(HardwareConfig, RefusesALinkThatIsSlowerBothWaysThanOneWay) {
  HardwareConfig hardware = load_hardware();
  hardware.links.pcie.both = BytesPerSecond(25e9);
  hardware.ssd->bandwidth.backward.rate = BytesPerSecond(6e9);
  EXPECT_EQ(problems_of(hardware),
            (Lines{"/hardware/links/pcie/both: both ways together (25GB/s) are slower than one way "
                   "alone (26GB/s)",
                   "/hardware/ssd/bandwidth/both: both ways together (5GB/s) are slower than one "
                   "way alone (6GB/s)"}));
}

TEST(HardwareConfig, RefusesALoadOfTheHostThatLeavesNoBandwidth) {
  HardwareConfig hardware = load_hardware();
  hardware.dram->host_load = BytesPerSecond(1e9);
  EXPECT_EQ(problems_of(hardware),
            Lines{"/hardware/dram/host_load: a load needs /hardware/dram/bandwidth, "
                  "which it takes a part of"});
  hardware.dram->bandwidth = BytesPerSecond(2e9);
  EXPECT_EQ(problems_of(hardware), Lines{});
  hardware.dram->host_load = BytesPerSecond(2e9);
  EXPECT_EQ(problems_of(hardware),
            Lines{"/hardware/dram/host_load: expected at most 1998MB/s, which leaves a "
                  "thousandth of the bandwidth, got 2GB/s"});
}

TEST(HardwareConfig, EveryGpuHasAHostLinkUnlessTheServerHasOne) {
  HardwareConfig hardware = load_hardware();
  hardware.gpus = 8;
  EXPECT_EQ(hardware.links.pcie.of, HostLinkOf::server);
  EXPECT_EQ(host_link(hardware).forward.rate, BytesPerSecond(26e9));
  EXPECT_EQ(HostLinkCurves().of, HostLinkOf::gpu);
  hardware.links.pcie.of = HostLinkOf::gpu;
  hardware.links.pcie.backward.rate = BytesPerSecond(25e9);
  hardware.links.pcie.forward.latency = SimDuration(7);
  hardware.links.pcie.forward.alone = BytesPerSecond(2e9);
  hardware.links.pcie.forward.depth = Bytes(1000);
  EXPECT_EQ(host_link(hardware).forward.rate, BytesPerSecond(8 * 26e9));
  EXPECT_EQ(host_link(hardware).backward.rate, BytesPerSecond(8 * 25e9));
  EXPECT_EQ(host_link(hardware).both, BytesPerSecond(8 * 42e9));
  EXPECT_EQ(host_link(hardware).forward.latency, SimDuration(7));
  EXPECT_EQ(host_link(hardware).forward.alone, BytesPerSecond(8 * 2e9));
  EXPECT_EQ(host_link(hardware).forward.depth, Bytes(8000));
  EXPECT_EQ(host_link(with_gpus(hardware, 1)), static_cast<DuplexCurves>(hardware.links.pcie));
}

TEST(HardwareConfig, SeveralHostLinksNeedTheBandwidthOfTheHostsMemory) {
  HardwareConfig hardware = load_hardware();
  hardware.links.pcie.of = HostLinkOf::gpu;
  EXPECT_EQ(
      problems_of(hardware),
      Lines{"/hardware/dram/bandwidth: 4 GPUs with a link to the host each need the bandwidth "
            "of the host's memory, which they share, such as \"400GB/s\"; or set "
            "/hardware/links/pcie/of to \"server\" if its rates are those of all GPUs "
            "together"});
  hardware.dram->bandwidth = BytesPerSecond(400e9);
  EXPECT_EQ(problems_of(hardware), Lines{});
  hardware.dram->bandwidth.reset();
  hardware.gpus = 1;
  EXPECT_EQ(problems_of(hardware), Lines{});
  hardware.gpus = 4;
  hardware.dram.reset();  // drives alone, which the GPUs read themselves
  EXPECT_EQ(problems_of(hardware), Lines{});
}

// H100: 989.4 TFLOP/s, 80 GiB, 3.35 TB/s, 52.8 GB/s and 4.9 $/h, each in the next larger unit.
TEST(HardwareConfig, RefusesFiguresThatNoMachineHas) {
  Json json = a100_json();
  json["gpu"] = Json{{"name", "H100"}, {"peak", "989.4PFLOP/s"}, {"price", "4916$/h"}};
  json["hbm"] = Json{{"capacity", "80TiB"}, {"bandwidth", "3350TB/s"}};
  json["dram"] = Json{{"capacity", "512PiB"}, {"price", "8.8$/h/GiB"}, {"bandwidth", "450TB/s"}};
  json["ssd"]["price"] = "40000$/GiB over 4y";
  json["ssd"]["bandwidth"] = Json{{"read", "55TB/s"}, {"write", "5GB/s"}, {"both", "99kB/s"}};
  json["links"]["pcie"]["to_device"] = "52.8TB/s";
  json["links"]["pcie"]["to_host"] = Json{{"rate", "52.8GB/s"}, {"latency", "11s"}};
  json["links"]["gpu"] = Json{{"bandwidth", "450TB/s"}, {"latency", "1min"}};
  json["efficiency"]["iteration_overhead"] = "4h";
  EXPECT_EQ(
      problems_of<HardwareConfig>(json),
      (Lines{
          "/gpu/peak: expected a compute rate >= 100MFLOP/s and <= 200PFLOP/s such as "
          "\"312TFLOP/s\", got \"989.4PFLOP/s\"",
          "/gpu/price: expected a price (by the hour, or bought for 1 to 20 years as \"30000$ "
          "over 4y\") >= 0 and <= 1000$/h such as \"5$/h\", got \"4916$/h\"",
          "/hbm/capacity: expected a size > 0 and <= 16TiB such as \"128GiB\", got \"80TiB\"",
          "/hbm/bandwidth: expected a bandwidth >= 10MB/s and <= 1000TB/s such as \"26GB/s\", "
          "got \"3350TB/s\"",
          "/dram/capacity: expected a size > 0 and <= 256PiB such as \"128GiB\", got "
          "\"512PiB\"",
          "/dram/price: expected a price (by the hour, or bought for 1 to 20 years as "
          "\"10$/GiB over 4y\") >= 0 and <= 1$/h/GiB such as \"0.0088$/h/GiB\", got "
          "\"8.8$/h/GiB\"",
          "/dram/bandwidth: expected a bandwidth >= 100kB/s and <= 100TB/s such as \"26GB/s\", "
          "got \"450TB/s\"",
          "/ssd/price: expected a price (by the hour, or bought for 1 to 20 years as "
          "\"10$/GiB over 4y\") >= 0 and <= 1$/h/GiB such as \"0.0088$/h/GiB\", got "
          "\"40000$/GiB over 4y\"",
          "/ssd/bandwidth/read: expected a bandwidth >= 100kB/s and <= 10TB/s such as "
          "\"26GB/s\", got \"55TB/s\"",
          "/ssd/bandwidth/both: expected a bandwidth >= 100kB/s such as \"26GB/s\", got "
          "\"99kB/s\"",
          "/links/pcie/to_device: expected a bandwidth >= 100kB/s and <= 10TB/s such as "
          "\"26GB/s\", got \"52.8TB/s\"",
          "/links/pcie/to_host/latency: expected a duration >= 0 and <= 10s such as \"360ms\", got "
          "\"11s\"",
          "/links/gpu/bandwidth: expected a bandwidth >= 0 and <= 10TB/s such as \"26GB/s\", "
          "got \"450TB/s\"",
          "/links/gpu/latency: expected a duration >= 0 and <= 10s such as \"360ms\", got "
          "\"1min\"",
          "/efficiency/iteration_overhead: expected a duration >= 0 and <= 10s such as "
          "\"360ms\", got \"4h\""}));
}

TEST(HardwareConfig, RefusesMachinesTooSlowToSimulate) {
  Json json = a100_json();
  json["gpu"]["peak"] = "1MFLOP/s";
  json["links"]["pcie"]["to_host"] = "10B/s";
  EXPECT_EQ(problems_of<HardwareConfig>(json),
            (Lines{"/gpu/peak: expected a compute rate >= 100MFLOP/s such as \"312TFLOP/s\", got "
                   "\"1MFLOP/s\"",
                   "/links/pcie/to_host: expected a bandwidth >= 100kB/s such as \"26GB/s\", got "
                   "\"10B/s\""}));
}

TEST(HardwareConfig, ConvertsPurchasePricesToHourlyPrices) {
  Json json = a100_json();
  json["gpu"]["price"] = "35064$ over 4y";
  json["dram"]["price"] = "10$/GiB over 4y";
  const auto hardware = test::read_config_json<HardwareConfig>(json);
  EXPECT_DOUBLE_EQ(hardware.gpu.price.value, 1);
  EXPECT_DOUBLE_EQ(hardware.dram->price.value, 10.0 / 35064);
  EXPECT_EQ(write_value(hardware)["dram"]["price"], "10$/GiB over 4y");
  EXPECT_EQ(test::read_config_json<HardwareConfig>(write_value(hardware)), hardware);
}

TEST(HardwareConfig, KvHasTheHostMemoryBandwidthThatOtherProgramsLeave) {
  HardwareConfig hardware = load_hardware();
  EXPECT_EQ(dram_bandwidth_left(hardware), std::nullopt) << "its bandwidth is never the limit";
  hardware.dram->bandwidth = BytesPerSecond(5e9);
  hardware.dram->host_load = BytesPerSecond(2e9);
  EXPECT_EQ(dram_bandwidth_left(hardware), BytesPerSecond(3e9));
  hardware.dram.reset();
  EXPECT_EQ(dram_bandwidth_left(hardware), std::nullopt);
}

TEST(HardwareConfig, RefusesCxlMemoryThatIsSlowerBothWaysThanOneWay) {
  HardwareConfig hardware = load_hardware("a100-40g");
  ASSERT_TRUE(hardware.cxl);
  hardware.cxl->bandwidth.both = BytesPerSecond(63e9);
  EXPECT_EQ(problems_of(hardware),
            Lines{"/hardware/cxl/bandwidth/both: both ways together (63GB/s) are "
                  "slower than one way alone (64GB/s)"});
}

TEST(HardwareConfig, NeedsAGpuLinkOnlyForSeveralGpus) {
  HardwareConfig hardware = load_hardware();
  hardware.links.gpu = {};
  EXPECT_EQ(problems_of(hardware),
            Lines{"/hardware/links/gpu/bandwidth: 4 GPUs need a link between "
                  "them"});
  EXPECT_EQ(problems_of(with_gpus(hardware, 1)), Lines{});
}

TEST(HardwareConfig, RefusesAProfileThatIsNoName) {
  Json json = a100_json();
  json["profile"] = 1;
  json["unmeasured"] = "ignore";
  EXPECT_EQ(problems_of<HardwareConfig>(json),
            (Lines{"/profile: expected a profile's name or path, got 1",
                   "/unmeasured: expected one of refuse, roofline, got \"ignore\""}));
}

TEST(HardwareConfig, HasASchema) {
  HardwareConfig hardware;
  const Json schema = value_schema(hardware);
  EXPECT_EQ(schema["properties"]["efficiency"]["properties"]["compute"]["maximum"], 1);
  EXPECT_EQ(schema["properties"]["dram"]["anyOf"][0]["const"], "none");
}

TEST(KvCapacity, IsTheMemoryBesideTheWeights) {
  // Llama-2-13B: (40 x 317,194,240 + 2 x 32000 x 5120) x 2 B = 26,030,899,200 B of 2 x 80 GiB =
  // 171,798,691,840 B.
  const ModelConfig model = load_model("llama2-13b");
  EXPECT_EQ(kv_capacity(model, with_gpus(load_hardware(), 2)), Bytes(145'767'792'640));
}

TEST(KvCapacity, IsZeroIfTheWeightsDoNotFit) {
  EXPECT_EQ(kv_capacity(load_model("llama-65b"), with_gpus(load_hardware(), 1)), Bytes(0));
}

TEST(Fit, RefusesAModelLargerThanTheHbm) {
  // (80 x 809,500,672 + 2 x 32000 x 8192) x 2 B = 130,568,683,520 B = 121.6 GiB.
  Problems problems;
  problems.set_origin("/hardware", "a100.json");
  check_fits(load_model("llama-65b"), with_gpus(load_hardware(), 1), problems);
  EXPECT_EQ(problems.lines(),
            Lines{"a100.json: /hardware/hbm/capacity: model llama-65b needs 121.6GiB for its "
                  "weights and more for KV, but 1 x 80.0GiB of HBM hold 80.0GiB"});
}

TEST(Fit, RefusesAModelThatLeavesNoByteForKv) {
  const ModelConfig model = load_model("llama2-13b");
  HardwareConfig hardware = with_gpus(load_hardware(), 1);
  hardware.hbm.capacity = weight_bytes(model);
  Problems problems;
  check_fits(model, hardware, problems);
  EXPECT_EQ(problems.lines().size(), 1U);
  hardware.hbm.capacity += Bytes(1);
  Problems none;
  check_fits(model, hardware, none);
  EXPECT_TRUE(none.empty());
}

TEST(Fit, AcceptsEveryModelFileOfLessThanFourA100) {
  for (const std::string& name : test::config_names("models")) {
    const ModelConfig model = load_model(name);
    Problems problems;
    check_fits(model, load_hardware(), problems);
    EXPECT_EQ(problems.empty(), weight_bytes(model) < hbm_bytes(load_hardware())) << name;
  }
}

}  // namespace
}  // namespace kvtier
