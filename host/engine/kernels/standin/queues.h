// Streams whose work is deferred: a kernel or a copy runs when something waits for it, or at once, as FOREWORD_LATE
// says.
//
//   FOREWORD_LATE   makes every first stream of two, every second, or both carry out their work as late as CUDA allows
//
// Both extremes are orders that a device may choose. Code that is right in all of them relies on no order that it did
// not request.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace standin {

struct Stream;

// A place in a stream, as an event marks it.
struct Mark {
    Stream* stream;
    bool reached = false;
};

struct Work {
    // The work to do; empty for marks and waits.
    std::function<void()> run;
    std::shared_ptr<Mark> reaches;
    std::shared_ptr<Mark> awaits;
};

// Recorded work, to be put into a stream as a whole.
using Graph = std::vector<std::function<void()>>;

struct Stream {
    bool late = false;
    std::deque<Work> waiting;
    // The capture in progress, if there is one.
    std::unique_ptr<Graph> recording;
    // Whether something was requested that a capture cannot contain.
    bool invalid = false;

    // Returns whether the first work of the stream waits for another stream.
    bool blocked() const { return waiting.front().awaits && !waiting.front().awaits->reached; }

    void first() {
        Work work = std::move(waiting.front());
        waiting.pop_front();
        if (work.run) work.run();
        if (work.reaches) work.reaches->reached = true;
    }
};

inline std::vector<std::unique_ptr<Stream>>& streams() {
    static std::vector<std::unique_ptr<Stream>> all;
    return all;
}

// Streams that are not late do all the work that they can.
inline void settle() {
    bool progress = true;
    while (progress) {
        progress = false;
        for (auto& stream : streams())
            while (!stream->late && !stream->waiting.empty() && !stream->blocked()) stream->first(), progress = true;
    }
}

inline void one(Stream& stream) {
    while (stream.blocked()) {
        auto mark = stream.waiting.front().awaits;
        one(*mark->stream);
    }
    stream.first();
}

// Carries out everything in the stream, and everything that it waits for.
inline void finish(Stream& stream) {
    while (!stream.waiting.empty()) one(stream);
    settle();
}

inline void put(Stream& stream, Work work) {
    stream.waiting.push_back(std::move(work));
    settle();
}

// Queues work, or adds it to the recording.
inline void put(Stream& stream, std::function<void()> run) {
    if (stream.recording) stream.recording->push_back(std::move(run));
    else put(stream, Work{std::move(run), nullptr, nullptr});
}

}  // namespace standin
