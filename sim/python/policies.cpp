#include "sim/python/policies.hpp"

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/policy/demand_name.hpp"
#include "sim/study/config/plugins.hpp"

namespace kvtier::python {
namespace {

namespace py = pybind11;

/// A Python object that may be copied and let go of by any thread, whether or not it holds the
/// interpreter.
using SharedObject = std::shared_ptr<py::object>;

SharedObject shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            const py::gil_scoped_acquire acquire;
            delete held;
          }};
}

/// A request that may outlive the call.
struct ShownRequest {
  RoomRequest request;
  std::optional<EntryView> newcomer;
};

/// The set of one call. Python may keep it for longer, but not use it.
struct ShownVictims {
  Victims* victims;
  [[nodiscard]] Victims& get() const {
    if (victims == nullptr) {
      throw std::runtime_error("victims: its choose() is over");
    }
    return *victims;
  }
};

std::optional<std::uint64_t> position_or_none(QueuePosition position) {
  return position == kNotQueued ? std::nullopt : std::optional(position.value);
}

/// An eviction policy whose decisions an object of Python makes.
class PythonEviction final : public EvictionPolicy {
 public:
  /// The interpreter is held. Methods that the class does not change are not called.
  PythonEviction(std::string name, const py::object& policy, const py::object& base)
      : name_(std::move(name)) {
    const auto method = [&](const char* method_name, bool optional) {
      const bool is_own = !py::type::of(policy).attr(method_name).is(base.attr(method_name));
      return optional && !is_own ? SharedObject() : shared(policy.attr(method_name));
    };
    on_start_ = method("on_start", true);
    on_insert_ = method("on_insert", false);
    on_hit_ = method("on_hit", true);
    on_resize_ = method("on_resize", true);
    on_release_ = method("on_release", true);
    if (!on_release_) {
      on_release_ = on_resize_;
    }
    on_split_ = method("on_split", true);
    on_remove_ = method("on_remove", false);
    on_queue_change_ = method("on_queue_change", true);
    on_next_use_ = method("on_next_use", true);
    choose_ = method("choose", false);
    check_invariants_ = method("check_invariants", false);
  }

  PythonEviction(const PythonEviction&) = delete;
  PythonEviction& operator=(const PythonEviction&) = delete;
  ~PythonEviction() override {
    const py::gil_scoped_acquire acquire;
    *running_ = false;
  }

  void on_start(const TierFacts& facts) override {
    // Python may keep the functions for longer than the run, of which their answers are.
    const auto in_ns = [this](std::function<SimDuration(Tokens)> duration) {
      return
          [name = name_, running = running_, duration = std::move(duration)](std::int64_t tokens) {
            if (!*running) {
              throw std::runtime_error(name + ".on_start: its functions are of a run that is over");
            }
            return duration(Tokens(tokens)).ns;
          };
    };
    call(on_start_, [&](const py::object& method) {
      method(py::cpp_function(in_ns(facts.recompute)), py::cpp_function(in_ns(facts.load)));
    });
  }
  void on_insert(const EntryView& entry, SimTime now) override {
    call(on_insert_, [&](const py::object& method) { method(entry, now.ns); });
  }
  void on_hit(EntryId entry, SimTime now) override {
    call(on_hit_, [&](const py::object& method) { method(entry.value, now.ns); });
  }
  void on_release(const EntryView& entry, SimTime now) override {
    call(on_release_, [&](const py::object& method) { method(entry, now.ns); });
  }
  void on_resize(const EntryView& entry, SimTime now) override {
    call(on_resize_, [&](const py::object& method) { method(entry, now.ns); });
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime now) override {
    if (!on_split_) {
      EvictionPolicy::on_split(head, tail, now);
      return;
    }
    call(on_split_, [&](const py::object& method) { method(head, tail, now.ns); });
  }
  void on_remove(EntryId entry, SimTime now) override {
    call(on_remove_, [&](const py::object& method) { method(entry.value, now.ns); });
  }
  void on_queue_change(EntryId entry, const QueueChange& change) override {
    call(on_queue_change_, [&](const py::object& method) {
      method(entry.value, change.position.value, change.waits, position_or_none(change.first));
    });
  }
  void on_next_use(EntryId entry, SimTime at) override {
    call(on_next_use_, [&](const py::object& method) {
      method(entry.value, at == kNever ? std::nullopt : std::optional(at.ns));
    });
  }

  void choose(const RoomRequest& request, Victims& victims) override {
    const py::gil_scoped_acquire acquire;
    const auto shown = std::make_shared<ShownVictims>(ShownVictims{&victims});
    const auto end = [](ShownVictims* over) { over->victims = nullptr; };
    const std::unique_ptr<ShownVictims, decltype(end)> call(shown.get(), end);
    (*choose_)(
        ShownRequest{request,
                     request.newcomer == nullptr ? std::nullopt : std::optional(*request.newcomer)},
        shown);
  }

  void check_invariants(const TierView& tier) const override {
    const py::gil_scoped_acquire acquire;
    py::list residents;
    tier.for_each_resident([&](const EntryView& entry, bool offered) {
      residents.append(py::make_tuple(entry, offered));
    });
    try {
      (*check_invariants_)(residents);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_AssertionError)) {
        throw;
      }
      throw InvariantError(fmt::format("{}.check_invariants: {}", name_, error.what()));
    }
  }

 private:
  template <class F>
  void call(const SharedObject& method, const F& with) {
    if (method) {
      const py::gil_scoped_acquire acquire;
      with(*method);
    }
  }

  std::string name_;
  /// Read and written by who holds the interpreter.
  std::shared_ptr<bool> running_ = std::make_shared<bool>(true);
  SharedObject on_start_;
  SharedObject on_insert_;
  SharedObject on_hit_;
  SharedObject on_release_;
  SharedObject on_resize_;
  SharedObject on_split_;
  SharedObject on_remove_;
  SharedObject on_queue_change_;
  SharedObject on_next_use_;
  SharedObject choose_;
  SharedObject check_invariants_;
};

/// Ctrl-C, or the end of the interpreter: no std::exception, of which checks make a policy's fault.
struct Interruption {
  std::shared_ptr<py::error_already_set> error;
};

PolicyKind<EvictionPolicy> kind_of(const py::object& declaration) {
  const auto text = [&](const char* name) { return declaration.attr(name).cast<std::string>(); };
  PolicyKind<EvictionPolicy> kind{
      .name = text("name"),
      .summary = text("summary"),
      .source = text("source"),
      .knowledge = Knowledge::online,
      .parts_of_entries = declaration.attr("parts_of_entries").cast<bool>(),
      .parameters = {},
      .make = nullptr};
  const std::string knowledge = text("knowledge");
  for (const Knowledge known : {Knowledge::look_ahead, Knowledge::oracle}) {
    kind.knowledge = knowledge == to_string(known) ? known : kind.knowledge;
  }
  for (const py::handle parameter : declaration.attr("parameters")) {
    const auto text_of = [&](const char* name) { return parameter.attr(name).cast<std::string>(); };
    kind.parameters.push_back(
        {.name = text_of("name"),
         .documentation = text_of("documentation"),
         .unit = text_of("unit"),
         .minimum = parameter.attr("minimum").cast<double>(),
         .maximum = parameter.attr("maximum").cast<double>(),
         .default_value = parameter.attr("default").cast<std::optional<double>>()});
  }
  const SharedObject type = shared(declaration.attr("policy"));
  const SharedObject base = shared(declaration.attr("base"));
  kind.make = [name = kind.name, type, base](const PolicyParameters& parameters) {
    const py::gil_scoped_acquire acquire;
    py::dict arguments;
    for (const auto& [key, value] : parameters) {
      arguments[py::str(key)] = value;
    }
    try {
      return std::make_unique<PythonEviction>(name, (*type)(**arguments), *base);
    } catch (const py::error_already_set& error) {
      if (error.matches(PyExc_Exception)) {
        throw;
      }
      throw Interruption{std::make_shared<py::error_already_set>(error)};
    }
  };
  return kind;
}

}  // namespace

PolicyRegistry make_registry(const std::vector<std::string>& plugins, const py::list& declared) {
  PolicyRegistry registry = load_policies(plugins);
  PolicyRegistry added;
  for (const py::handle declaration : declared) {
    added.eviction.push_back(kind_of(py::reinterpret_borrow<py::object>(declaration)));
  }
  std::vector<std::string> problems =
      add_policies(registry, std::move(added), "register_eviction_policy");
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return registry;
}

void bind_views(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const Interruption& interruption) {
      interruption.error->restore();
    }
  });
  py::class_<EntryView>(module, "Entry", "One entry as a tier holds it; times in nanoseconds.")
      .def_property_readonly("id", [](const EntryView& e) { return e.id.value; })
      .def_property_readonly("key", [](const EntryView& e) { return e.key.value; })
      .def_property_readonly("depth", [](const EntryView& e) { return e.depth.value; })
      .def_property_readonly("place", [](const EntryView& e) { return e.place; })
      .def_property_readonly("tokens", [](const EntryView& e) { return e.tokens.value; })
      .def_property_readonly("bytes", [](const EntryView& e) { return e.bytes.value; })
      .def_property_readonly("first_inserted",
                             [](const EntryView& e) { return e.first_inserted.ns; })
      .def_property_readonly("session_began", [](const EntryView& e) { return e.session_began.ns; })
      .def_property_readonly("last_used", [](const EntryView& e) { return e.last_used.ns; })
      .def_property_readonly("queue_position",
                             [](const EntryView& e) { return position_or_none(e.queue_position); })
      .def_property_readonly("next_use", [](const EntryView& e) {
        return e.next_use == kNever ? std::nullopt : std::optional(e.next_use.ns);
      });
  py::class_<ShownRequest>(module, "RoomRequest", "Why and for whom room is needed.")
      .def_property_readonly("now", [](const ShownRequest& r) { return r.request.now.ns; })
      .def_property_readonly("demand",
                             [](const ShownRequest& r) { return to_string(r.request.demand); })
      .def_property_readonly(
          "incoming", [](const ShownRequest& r) { return position_or_none(r.request.incoming); })
      .def_property_readonly(
          "queue_first",
          [](const ShownRequest& r) { return position_or_none(r.request.queue_first); })
      .def_property_readonly(
          "window_end",
          [](const ShownRequest& r) { return position_or_none(r.request.window_end); })
      .def_property_readonly("newcomer", [](const ShownRequest& r) { return r.newcomer; });
  py::class_<ShownVictims, std::shared_ptr<ShownVictims>>(
      module, "Victims", "The set of entries that a policy chooses.")
      .def(
          "offers",
          [](const ShownVictims& v, std::uint32_t entry) { return v.get().offers(EntryId{entry}); },
          py::arg("entry"), "Whether the entry may leave, and is not in the set.")
      .def(
          "wants_more", [](const ShownVictims& v) { return v.get().wants_more(); },
          "False once the set frees the wanted room, or is refused.")
      .def(
          "add",
          [](const ShownVictims& v, std::uint32_t entry, std::int64_t keep) {
            return v.get().add(EntryId{entry}, Tokens(keep)).value;
          },
          py::arg("entry"), py::arg("keep") = 0,
          "Adds what the entry holds behind its first `keep` tokens. Returns the tokens that it "
          "keeps.");
}

}  // namespace kvtier::python
