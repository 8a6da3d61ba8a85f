/* The inner loops of verax/randomness/normal.py, each in one pass. loops.py says in numpy what they do.

   Nothing here decides the law of a draw: tables and bounds come from Python, and a sum that is in doubt is left to
   exact arithmetic (docs/noise.md). A compiler must not reorder sums, though: loops.py checks what it made of this. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "every operation must be done as it is written, and rounded to its type"
#endif

#ifdef _MSC_VER
#define restrict __restrict
#endif

/* Where it can be done, a second version of a loop for processors with wider registers. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

enum { TABLE = 4096, PLACE_BITS = 52, CHUNK = 256, ARRAYS = 5 };

/* --- loops ------------------------------------------------------------------------------------------------------- */

/* Without their sign, the bits of floating-point numbers are ordered as the numbers are, and nan comes last. */
#define LARGEST(name, type, integer, unsigned_bits)                                                                    \
    WIDE static double name(const integer *bits, Py_ssize_t size)                                                      \
    {                                                                                                                  \
        integer most = 0;                                                                                              \
        type found;                                                                                                    \
        for (Py_ssize_t i = 0; i < size; i++) {                                                                        \
            integer one = bits[i] & unsigned_bits;                                                                     \
            most = one > most ? one : most;                                                                            \
        }                                                                                                              \
        memcpy(&found, &most, sizeof found);                                                                           \
        return found;                                                                                                  \
    }

LARGEST(largest_single, float, uint32_t, 0x7fffffffu)
LARGEST(largest_double, double, uint64_t, 0x7fffffffffffffffu)

static Py_ssize_t draw_all(
    const uint64_t *restrict words, Py_ssize_t size, const double *restrict slope, const double *restrict start,
    uint64_t leftover, double *restrict draws, int64_t *restrict late)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        uint64_t bits = (words[i] & 0x000fffffffffffffu) | 0x3ff0000000000000u, at = words[i] >> PLACE_BITS;
        double place; /* 1 + u */
        memcpy(&place, &bits, sizeof place);
        draws[i] = slope[at] * place + start[at];
        if (words[i] >= leftover) late[found++] = i;
    }
    return found;
}

/* Some sums at a time: among nearly all of them there is none in doubt, and that is found out without a branch. */
#define ADD(name, type)                                                                                                \
    WIDE static Py_ssize_t name(                                                                                       \
        type *into, Py_ssize_t size, const double *draws, double sigma, double magic, double limit, int64_t *doubts)   \
    {                                                                                                                  \
        Py_ssize_t found = 0;                                                                                          \
        for (Py_ssize_t start = 0; start < size; start += CHUNK) {                                                     \
            Py_ssize_t some = size - start < CHUNK ? size - start : CHUNK;                                             \
            double near[CHUNK], error[CHUNK];                                                                          \
            int64_t unsure = 0;                                                                                        \
            for (Py_ssize_t i = 0; i < some; i++) {                                                                    \
                double sum = draws[start + i] * sigma + into[start + i];                                               \
                near[i] = (sum + magic) - magic;                                                                       \
                error[i] = fabs(sum - near[i]);                                                                        \
                unsure |= error[i] <= limit ? 0 : -1;                                                                  \
            }                                                                                                          \
            for (Py_ssize_t i = 0; unsure && i < some; i++) {                                                          \
                if (error[i] <= limit) continue;                                                                       \
                doubts[found++] = start + i;                                                                           \
                near[i] = into[start + i];                                                                             \
            }                                                                                                          \
            for (Py_ssize_t i = 0; i < some; i++) into[start + i] = (type)near[i];                                     \
        }                                                                                                              \
        return found;                                                                                                  \
    }

ADD(add_single, float)
ADD(add_double, double)

/* --- arrays from Python ------------------------------------------------------------------------------------------ */

typedef struct {
    Py_buffer view[ARRAYS];
    int count;
} Held;

/* The memory of a contiguous array of at least so many items of one of these kinds. */
static Py_buffer *hold(Held *held, PyObject *array, const char *kinds, Py_ssize_t least, int written)
{
    Py_buffer *view = &held->view[held->count];
    if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0)) < 0)
        return NULL;
    held->count++;
    if (view->format && strlen(view->format) == 1 && strchr(kinds, view->format[0])
        && view->itemsize == (view->format[0] == 'f' ? 4 : 8) && view->len / view->itemsize >= least)
        return view;
    PyErr_Format(PyExc_ValueError, "array must hold at least %zd items of a kind in %s", least, kinds);
    return NULL;
}

static PyObject *finish(Held *held, PyObject *found)
{
    while (held->count) PyBuffer_Release(&held->view[--held->count]);
    return found;
}

/* largest(values) */
static PyObject *largest(PyObject *Py_UNUSED(self), PyObject *values)
{
    Held held = {.count = 0};
    Py_buffer *view = hold(&held, values, "fd", 0, 0);
    if (!view) return finish(&held, NULL);
    Py_ssize_t size = view->len / view->itemsize;
    double found = view->itemsize == 4 ? largest_single(view->buf, size) : largest_double(view->buf, size);
    return finish(&held, PyFloat_FromDouble(found));
}

/* draw(words, slope, start, leftover, draws, late): how many places were written to late */
static PyObject *draw(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count)
{
    Held held = {.count = 0};
    Py_buffer *words, *slope, *start, *draws, *late;
    if (count != 6) return PyErr_Format(PyExc_TypeError, "draw takes 6 arguments, got %zd", count);
    uint64_t leftover = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (!(words = hold(&held, args[0], "LQ", 0, 0))) return finish(&held, NULL);
    Py_ssize_t size = words->len / words->itemsize;
    if (!(slope = hold(&held, args[1], "d", TABLE, 0)) || !(start = hold(&held, args[2], "d", TABLE, 0))
        || !(draws = hold(&held, args[4], "d", size, 1)) || !(late = hold(&held, args[5], "lq", size, 1)))
        return finish(&held, NULL);
    Py_ssize_t found = draw_all(words->buf, size, slope->buf, start->buf, leftover, draws->buf, late->buf);
    return finish(&held, PyLong_FromSsize_t(found));
}

/* add(into, draws, sigma, magic, limit, doubts): how many places were written to doubts */
static PyObject *add(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count)
{
    Held held = {.count = 0};
    Py_buffer *into, *draws, *doubts;
    if (count != 6) return PyErr_Format(PyExc_TypeError, "add takes 6 arguments, got %zd", count);
    double sigma = PyFloat_AsDouble(args[2]), magic = PyFloat_AsDouble(args[3]), limit = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    if (!(into = hold(&held, args[0], "fd", 0, 1))) return finish(&held, NULL);
    Py_ssize_t size = into->len / into->itemsize, found;
    if (!(draws = hold(&held, args[1], "d", size, 0)) || !(doubts = hold(&held, args[5], "lq", size, 1)))
        return finish(&held, NULL);
    found = into->itemsize == 4 ? add_single(into->buf, size, draws->buf, sigma, magic, limit, doubts->buf)
                                : add_double(into->buf, size, draws->buf, sigma, magic, limit, doubts->buf);
    return finish(&held, PyLong_FromSsize_t(found));
}

static PyMethodDef methods[] = {
    {"largest", largest, METH_O, NULL},
    {"draw", (PyCFunction)(void (*)(void))draw, METH_FASTCALL, NULL},
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef kernel = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&kernel);
}
